# Scaling: throughput with the line of ideal scaling, and beside it the efficiency.
# Usage: gnuplot -d -c throughput.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_sweep.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 1160
left = 78
right = 26
middle = 690
top = 104
bottom = 472
legend_y = 536
# Rows of the legend: what an entry takes, and where the next one begins.
entry(text) = 58 + 6.6 * strlen(text)
fits(x, text) = (x == left || x + entry(text) <= width)
ideal_name = 'as many per device as the best size'
effective_name = 'after failures and checkpoints'
x = left
rows = 1
do for [k=1:n_series+2] {
    name = k <= n_series ? series_name[k] : k == n_series+1 ? ideal_name : effective_name
    if (k <= n_series || (k == n_series+1 ? has_ideal : has_effective)) {
        if (!fits(x, name)) { x = left; rows = rows + 1 }
        x = x + entry(name)
    }
}
height = (footer eq '' ? 560 : 578) + 17 * (rows - 1)
load common_gp
load axes_gp

set multiplot

# The legend, below the axes: a line and a point for each series, then what the strokes mean.
x = left
do for [k=1:n_series] {
    if (!fits(x, series_name[k])) { x = left; legend_y = legend_y + 17 }
    set arrow 100+k from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 2.2*unit lc rgb series_color[k] front
    set label 100+k series_name[k] at screen x_at(x+31),y_at(legend_y) font face(11) tc rgb ink \
        front
    x = x + entry(series_name[k])
}
if (has_ideal) {
    if (!fits(x, ideal_name)) { x = left; legend_y = legend_y + 17 }
    set arrow 120 from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 1.2*unit dt (5,4) lc rgb '#999999' front
    set label 120 ideal_name at screen x_at(x+31),y_at(legend_y) font face(11) tc rgb ink front
    x = x + entry(ideal_name)
}
if (has_effective) {
    if (!fits(x, effective_name)) { x = left; legend_y = legend_y + 17 }
    set arrow 121 from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 1.2*unit dt (1.5,2.5) lc rgb ink front
    set label 121 effective_name at screen x_at(x+31),y_at(legend_y) \
        font face(11) tc rgb ink front
}

if (footer ne '') {
    set label 97 footer at screen x_at(left),y_at(legend_y+22) font face(9) tc rgb faint front
}
set logscale x 2
set xrange [x_low:x_high]
do for [k=1:n_xtics] { set xtics add (xtic_name[k] xtic[k]) }
set xlabel x_title font face(11) tc rgb faint offset 0,0.2

set rmargin at screen x_at(middle-50)
set label 1 'throughput' at screen x_at(left),y_at(top-16) font bold(14) tc rgb ink
set logscale y 10
set yrange [y_low:y_high]
do for [k=1:y_n_tics] { set ytics add (y_tic_name[k] y_tic[k]) }
set ylabel 'tokens/s' font face(11) tc rgb faint offset 0.5,0
mine(k, c) = ($1 == k-1 ? column(c) : NaN)
plot for [k=1:n_series] data_tsv using (mine(k,2)):(mine(k,8)) \
        with lines lw 1.2*unit dt (5,4) lc rgb '#999999', \
    for [k=1:n_series] data_tsv using (mine(k,2)):(mine(k,7)) \
        with lines lw 1.2*unit dt (1.5,2.5) lc rgb series_color[k], \
    for [k=1:n_series] data_tsv using (mine(k,2)):(mine(k,6)) \
        with linespoints lw 2.2*unit pt 7 ps 0.7 lc rgb series_color[k], \
    data_tsv using (has_labels ? $2 : NaN):6:12 with labels left offset 0.9,-0.75 \
        font face(9.5) tc rgb faint

do for [k=97:130] {
    unset label k
    unset arrow k
}
set lmargin at screen x_at(middle)
set rmargin at screen x_at(width-right)
set label 1 second_title at screen x_at(middle),y_at(top-16) font bold(14) tc rgb ink
set xrange [x_low:second_x_high]
unset logscale y
set yrange [0:second_high]
set ytics auto
set ytics second_step format '%g %%' font face_11 tc rgb faint
unset ylabel
plot for [k=1:n_series] data_tsv using (mine(k,2)):(100*mine(k,10)) \
        with lines lw 1.2*unit dt (1.5,2.5) lc rgb series_color[k], \
    for [k=1:n_series] data_tsv using (mine(k,2)):(100*mine(k,9)) \
        with linespoints lw 2.2*unit pt 7 ps 0.7 lc rgb series_color[k]
unset multiplot
