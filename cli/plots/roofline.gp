# A roofline: points below what a device can do.
# Usage: gnuplot -d -c roofline.gp svg|png, beside data.tsv and settings.gp, which
# cli/draw/plot_roofline.c writes; the picture is called "picture".  Lengths in settings are pixels.
load 'settings.gp'
set encoding utf8
if (ARG1 eq 'svg') {
    set terminal svg noenhanced size width,height background rgb 'white' name 'degas' \
        font font_name.',12'
    unit = 1.0
} else {
    set terminal pngcairo noenhanced size 2*width,2*height background rgb 'white' \
        font font_name.',12' fontscale 1.5
    unit = 2.0
}
set output 'picture'
set datafile separator tab
set datafile columnheaders
set datafile missing 'nan'
unset key
ink = '#333333'
faint = '#777777'
face(px) = sprintf('%s,%.1f', font_name, px)
# The SVG terminal writes a font's name as it is into an attribute, and knows no weight.
heavy = ARG1 eq 'svg' ? '" font-weight="bold' : ':Bold'
bold(px) = sprintf('%s%s,%.1f', font_name, heavy, px)
face_11 = face(11)
x_at(px) = real(px) / width
y_at(px) = 1 - real(px) / height

set label 98 title at screen x_at(left),y_at(26) font bold(17) tc rgb ink
set label 99 subtitle at screen x_at(left),y_at(48) font face(12) tc rgb faint
x = left
do for [k=1:n_series] {
    set object 100+k circle at screen x_at(x+6),y_at(legend_y) size screen x_at(5) \
        fc rgb series_color[k] fs solid noborder front
    set label 100+k series_name[k] at screen x_at(x+20),y_at(legend_y) font face(11) tc rgb ink \
        front
    x = x + 48 + 6.6 * strlen(series_name[k])
}
set border 0
set tics scale 0 nomirror
set grid xtics ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set tmargin at screen y_at(top)
set bmargin at screen y_at(bottom)
set lmargin at screen x_at(left)
set rmargin at screen x_at(width-right)
set logscale xy 10
set xrange [x_low:x_high]
set yrange [y_low:y_high]
set xtics () font face_11 tc rgb faint
do for [k=1:x_n_tics] { set xtics add (x_tic_name[k] x_tic[k]) }
set ytics () font face_11 tc rgb faint
do for [k=1:y_n_tics] { set ytics add (y_tic_name[k] y_tic[k]) }
set xlabel x_title font face(11) tc rgb faint offset 0,0.2
set ylabel 'FLOP/s of a device' font face(11) tc rgb faint offset 0.5,0
set label 1 peak_text at first x_high,peak right offset 0,0.7 font face(11) tc rgb ink front
if (bandwidth > 0) {
    slope_x = x_low > y_low/bandwidth ? x_low : y_low/bandwidth
    slope_x = sqrt(slope_x * peak/bandwidth)
    set label 2 bandwidth_text at first slope_x,bandwidth*slope_x left offset 1.2,-0.4 \
        font face(11) tc rgb ink front
}
roof(x) = bandwidth > 0 && bandwidth*x < peak ? bandwidth*x : peak
set samples 400
plot roof(x) with lines lw 2*unit lc rgb ink, \
    'data.tsv' using 1:3 with points pt 2 ps 0.5 lw 1.2*unit lc rgb faint, \
    for [k=1:n_series] 'data.tsv' using ($4 == k-1 ? $1 : NaN):2:(0.5 + 1.6*$5) \
        with points pt 7 ps variable lc rgb series_color[k], \
    'data.tsv' using ($6 == 1 ? $1 : NaN):2:7 with labels left offset 1,-0.6 font face(10) \
        tc rgb ink
set output
