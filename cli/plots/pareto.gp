# A trade-off: points, and the front of those that nothing beats in both.
# Usage: gnuplot -d -c pareto.gp svg|png, beside data.tsv and settings.gp, which cli/draw/plot_pareto.c
# writes; the picture is called "picture".  All lengths in settings are pixels.
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
unset key
ink = '#333333'
faint = '#777777'
blue = '#0072b2'
face(px) = sprintf('%s,%.1f', font_name, px)
# The SVG terminal writes a font's name as it is into an attribute, and knows no weight.
heavy = ARG1 eq 'svg' ? '" font-weight="bold' : ':Bold'
bold(px) = sprintf('%s%s,%.1f', font_name, heavy, px)
face_11 = face(11)
x_at(px) = real(px) / width
y_at(px) = 1 - real(px) / height

set label 98 title at screen x_at(left),y_at(26) font bold(17) tc rgb ink
set label 99 subtitle at screen x_at(left),y_at(48) font face(12) tc rgb faint
set label 100 'on the front: nothing is better in both' at screen x_at(left+20),y_at(legend_y) \
    font face(11) tc rgb ink front
set object 100 circle at screen x_at(left+6),y_at(legend_y) size screen x_at(5) fc rgb blue \
    fs solid noborder front
set label 101 'beaten by one of these' at screen x_at(left+320),y_at(legend_y) font face(11) \
    tc rgb ink front
set object 101 circle at screen x_at(left+306),y_at(legend_y) size screen x_at(5) fc rgb '#bbbbbb' \
    fs solid noborder front

set border 0
set tics scale 0 nomirror
set grid xtics ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set tmargin at screen y_at(top)
set bmargin at screen y_at(bottom)
set lmargin at screen x_at(left)
set rmargin at screen x_at(width-right)
set xrange [x_low:x_high]
set yrange [y_low:y_high]
set format x '%g'
set format y '%g'
set xtics font face_11 tc rgb faint
set ytics font face_11 tc rgb faint
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
plot 'data.tsv' using ($3 == 1 ? $1 : NaN):2 with steps lw 1.6*unit lc rgb '#9cc3dc', \
    'data.tsv' using ($3 == 0 ? $1 : NaN):2 with points pt 7 ps 0.7 lc rgb '#bbbbbb', \
    'data.tsv' using ($3 == 1 ? $1 : NaN):2 with points pt 7 ps 0.9 lc rgb blue, \
    'data.tsv' using ($4 == 1 && $3 == 1 ? $1 : NaN):2:5 with labels left offset 0.8,0.7 \
        font face(10) tc rgb ink, \
    'data.tsv' using ($4 == 1 && $3 == 0 ? $1 : NaN):2:5 with labels left offset 0.8,0.7 \
        font face(10) tc rgb faint
set output
