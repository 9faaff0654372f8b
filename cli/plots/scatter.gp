# Predicted against measured on logarithmic axes, with the line of equality and a band of 10 %.
# Usage: gnuplot -d -c scatter.gp svg|png, beside data.tsv and settings.gp, which
# cli/draw/plot_scatter.c writes; the picture is called "picture".  All lengths in settings are pixels.
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

# The legend below the axes, its marks drawn as points outside the plot.
set label 100 '' at screen x_at(left+6),y_at(legend_y) point pt 6 ps 0.6 lw 1.2*unit lc rgb raw_color
set label 101 raw_name at screen x_at(left+16),y_at(legend_y) font face_11 tc rgb ink
if (has_fitted) {
    x = left + 40 + 6.4 * strlen(raw_name)
    set label 102 '' at screen x_at(x),y_at(legend_y) point pt 7 ps 0.4 lc rgb fitted_color
    set label 103 fitted_name at screen x_at(x+10),y_at(legend_y) font face_11 tc rgb ink
}

set border 0
set tics scale 0 nomirror
set grid xtics ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set logscale xy 10
set xrange [low:high]
set yrange [low:high]
set xtics () font face_11 tc rgb faint
set ytics () font face_11 tc rgb faint
do for [k=1:n_tics] {
    set xtics add (tic_name[k] tic[k])
    set ytics add (tic_name[k] tic[k])
}
set xlabel 'measured ['.unit_name.']' font face_11 tc rgb faint offset 0,0.2
set ylabel 'predicted ['.unit_name.']' font face_11 tc rgb faint offset 0.5,0
set lmargin at screen x_at(left)
set rmargin at screen x_at(width-right)
set tmargin at screen y_at(top)
set bmargin at screen y_at(bottom)
# The band, cut where it leaves the axes.
set object 1 polygon from low,1.1*low to high/1.1,high to high,high to high,0.9*high \
    to low/0.9,low to low,low to low,1.1*low fc rgb '#eeeeee' fs solid noborder behind
set samples 2
plot x with lines lw 1.2*unit lc rgb '#999999', \
    'data.tsv' using 1:2 with points pt 6 ps 0.6 lw 1.2*unit lc rgb raw_color, \
    'data.tsv' using 1:(has_fitted ? $3 : NaN) with points pt 7 ps 0.35 lc rgb fitted_color
set output
