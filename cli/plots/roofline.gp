# A roofline: points below what a device can do.
# Usage: gnuplot -d -c roofline.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_points.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 980
height = 600
left = 82
right = 40
top = 78
bottom = 508
legend_y = 576
load common_gp
load axes_gp

x = left
do for [k=1:n_series] {
    set object 100+k circle at screen x_at(x+6),y_at(legend_y) size screen x_at(5) \
        fc rgb series_color[k] fs solid noborder front
    set label 100+k series_name[k] at screen x_at(x+20),y_at(legend_y) font face(11) tc rgb ink \
        front
    x = x + 48 + 6.6 * strlen(series_name[k])
}
set logscale xy 10
set xrange [x_low:x_high]
set yrange [y_low:y_high]
do for [k=1:x_n_tics] { set xtics add (x_tic_name[k] x_tic[k]) }
do for [k=1:y_n_tics] { set ytics add (y_tic_name[k] y_tic[k]) }
set xlabel x_title font face(11) tc rgb faint offset 0,0.2
set ylabel 'FLOP/s of a device' font face(11) tc rgb faint offset 0.5,0
set label 1 peak_text at first x_high,peak right offset 0,0.7 font face(11) tc rgb ink front
if (bandwidth > 0) {
    # Left of the slope, near its end: points are right of it.
    slope_x = 0.8*peak/bandwidth
    set label 2 bandwidth_text at first slope_x,bandwidth*slope_x right offset -1,0 \
        font face(11) tc rgb ink front
}
# Lines of text between a point and its label.
lines = '-0.9 0.9 -2 2'
# A thin line leads from a point to the end of its label that is nearer: pixels of a letter and of a line as shares of the axes.
dx(x, letters) = x * ((x_high/x_low)**(letters * 8.0 / (width-left-right)) - 1)
dy(y, n) = y * ((y_high/y_low)**((n > 0 ? n - 0.4 : n + 0.4) * 19.0 / (bottom-top)) - 1)
roof(x) = bandwidth > 0 && bandwidth*x < peak ? bandwidth*x : peak
set samples 400
plot roof(x) with lines lw 2*unit lc rgb ink, \
    for [i=0:7] data_tsv using ($6 == i ? $1 : NaN):2:(dx($1, i % 2 == 0 ? 1 : -1)):(dy($2, real(word(lines, i/2+1)))) \
        with vectors nohead lw 0.8*unit lc rgb '#aaaaaa', \
    data_tsv using 1:3 with points pt 2 ps 0.5 lw 1.2*unit lc rgb faint, \
    for [k=1:n_series] data_tsv using ($4 == k-1 ? $1 : NaN):2:(0.5 + 1.6*$5) \
        with points pt 7 ps variable lc rgb series_color[k], \
    for [i=0:3] data_tsv using ($6 == 2*i ? $1 : NaN):2:7 \
        with labels left offset 1,real(word(lines, i+1)) font face(10) tc rgb ink, \
    for [i=0:3] data_tsv using ($6 == 2*i+1 ? $1 : NaN):2:7 \
        with labels right offset -1,real(word(lines, i+1)) font face(10) tc rgb ink
