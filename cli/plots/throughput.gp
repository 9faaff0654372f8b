# Scaling: throughput with the line of ideal scaling, and beside it the efficiency.
# Usage: gnuplot -d -c throughput.gp svg|png, beside data.tsv and settings.gp, which
# cli/draw/plot_sweep.c writes; the picture is called "picture".  All lengths in settings are pixels.
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
face_10 = face(10)
face_11 = face(11)
x_at(px) = real(px) / width
y_at(px) = 1 - real(px) / height

set multiplot
set label 98 title at screen x_at(left),y_at(26) font bold(17) tc rgb ink
set label 99 subtitle at screen x_at(left),y_at(48) font face(12) tc rgb faint

# The legend, below the axes: a line and a point for each series, then what the strokes mean.
x = left
do for [k=1:n_series] {
    set arrow 100+k from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 2.2*unit lc rgb series_color[k] front
    set label 100+k series_name[k] at screen x_at(x+31),y_at(legend_y) font face(11) tc rgb ink \
        front
    x = x + 58 + 6.6 * strlen(series_name[k])
}
if (has_ideal) {
    set arrow 120 from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 1.2*unit dt (5,4) lc rgb '#999999' front
    set label 120 'as many per device as the best size' at screen x_at(x+31),y_at(legend_y) font face(11) tc rgb ink front
    x = x + 58 + 6.6 * 35
}
if (has_effective) {
    set arrow 121 from screen x_at(x),y_at(legend_y) to screen x_at(x+24),y_at(legend_y) nohead \
        lw 1.2*unit dt (1.5,2.5) lc rgb ink front
    set label 121 'after failures and checkpoints' at screen x_at(x+31),y_at(legend_y) \
        font face(11) tc rgb ink front
}

if (footer ne '') {
    set label 97 footer at screen x_at(left),y_at(legend_y+22) font face(9) tc rgb faint front
}
set border 0
set tics scale 0 nomirror
set grid xtics ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set logscale x 2
set xrange [x_low:x_high]
set xtics () font face_11 tc rgb faint
do for [k=1:n_xtics] { set xtics add (xtic_name[k] xtic[k]) }
set xlabel x_title font face(11) tc rgb faint offset 0,0.2
set tmargin at screen y_at(top)
set bmargin at screen y_at(bottom)

set lmargin at screen x_at(left)
set rmargin at screen x_at(middle-50)
set label 1 'throughput' at screen x_at(left),y_at(top-16) font bold(14) tc rgb ink
set logscale y 10
set yrange [y_low:y_high]
set ytics () font face_11 tc rgb faint
do for [k=1:y_n_tics] { set ytics add (y_tic_name[k] y_tic[k]) }
set ylabel 'tokens/s' font face(11) tc rgb faint offset 0.5,0
mine(k, c) = ($1 == k-1 ? column(c) : NaN)
plot for [k=1:n_series] 'data.tsv' using (mine(k,2)):(mine(k,8)) \
        with lines lw 1.2*unit dt (5,4) lc rgb '#999999', \
    for [k=1:n_series] 'data.tsv' using (mine(k,2)):(mine(k,7)) \
        with lines lw 1.2*unit dt (1.5,2.5) lc rgb series_color[k], \
    for [k=1:n_series] 'data.tsv' using (mine(k,2)):(mine(k,6)) \
        with linespoints lw 2.2*unit pt 7 ps 0.7 lc rgb series_color[k], \
    'data.tsv' using (has_labels ? $2 : NaN):6:12 with labels left offset 0.9,-0.75 \
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
plot for [k=1:n_series] 'data.tsv' using (mine(k,2)):(100*mine(k,10)) \
        with lines lw 1.2*unit dt (1.5,2.5) lc rgb series_color[k], \
    for [k=1:n_series] 'data.tsv' using (mine(k,2)):(100*mine(k,9)) \
        with linespoints lw 2.2*unit pt 7 ps 0.7 lc rgb series_color[k]
unset multiplot
set output
