# A trade-off: points, and the front of those that nothing beats in both.
# Usage: gnuplot -d -c pareto.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_points.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 980
height = 580
left = 82
right = 40
top = 78
bottom = 490
legend_y = 556
blue = '#0072b2'
load common_gp
load axes_gp

set label 100 'on the front: nothing is better in both' at screen x_at(left+20),y_at(legend_y) \
    font face(11) tc rgb ink front
set object 100 circle at screen x_at(left+6),y_at(legend_y) size screen x_at(5) fc rgb blue \
    fs solid noborder front
if (has_beaten) {
    set label 101 'beaten by one of these' at screen x_at(left+320),y_at(legend_y) font face(11) \
        tc rgb ink front
    set object 101 circle at screen x_at(left+306),y_at(legend_y) size screen x_at(5) \
        fc rgb '#bbbbbb' fs solid noborder front
}

set xrange [x_low:x_high]
set yrange [y_low:y_high]
set format x '%g'
set format y '%g'
set xtics autofreq font face_11 tc rgb faint
set ytics autofreq font face_11 tc rgb faint
if (x_is_log) {
    set logscale x 10
    set xtics ()
    do for [k=1:x_n_tics] { set xtics add (x_tic_name[k] x_tic[k]) }
}
if (y_is_log) {
    set logscale y 10
    set ytics ()
    do for [k=1:y_n_tics] { set ytics add (y_tic_name[k] y_tic[k]) }
}
set xlabel x_title font face(11) tc rgb faint offset 0,0.2
set ylabel y_title font face(11) tc rgb faint offset 0.5,0
if (limit > 0 && limit < y_high) {
    set arrow 2 from graph 0,first limit to graph 1,first limit nohead dt (6,4) lw 1.2*unit \
        lc rgb '#d55e00' front
    set label 3 'memory of a device' at graph 1,first limit right offset 0,0.6 font face(11) \
        tc rgb '#d55e00' front
}
# A label stands right above its point, or left below it where it would end outside of the picture.
share(x) = x_is_log ? log(x/x_low)/log(x_high/x_low) : (x-x_low)/(x_high-x_low)
fits(x,text) = share(x)*(width-left-right)+5.6*strlen(text) < width-left
plot data_tsv using ($3 == 1 ? $1 : NaN):2 with steps lw 1.6*unit lc rgb '#9cc3dc', \
    data_tsv using ($3 == 0 ? $1 : NaN):2 with points pt 7 ps 0.7 lc rgb '#bbbbbb', \
    data_tsv using ($3 == 1 ? $1 : NaN):2 with points pt 7 ps 0.9 lc rgb blue, \
    for [front=0:1] data_tsv using ($4 == 1 && $3 == front && fits($1,strcol(5)) ? $1 : NaN):2:5 \
        with labels left offset 0.8,0.7 font face(10) tc rgb (front ? ink : faint), \
    for [front=0:1] data_tsv using ($4 == 1 && $3 == front && !fits($1,strcol(5)) ? $1 : NaN):2:5 \
        with labels right offset -0.8,-0.7 font face(10) tc rgb (front ? ink : faint)
