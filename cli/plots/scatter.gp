# Predicted against measured on logarithmic axes, with the line of equality and a band of 10 %.
# Usage: gnuplot -d -c scatter.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_scatter.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 560
height = 620
left = 70
right = 20
top = 66
bottom = 530
legend_y = 600
# Okabe and Ito, 2008.
raw_color = '#e69f00'
fitted_color = '#0072b2'
load common_gp
load axes_gp

# The legend below the axes, its marks drawn as points outside the plot.
set label 100 '' at screen x_at(left+6),y_at(legend_y) point pt 6 ps 0.6 lw 1.2*unit lc rgb raw_color
set label 101 raw_name at screen x_at(left+16),y_at(legend_y) font face_11 tc rgb ink
if (has_fitted) {
    x = left + 40 + 6.4 * strlen(raw_name)
    set label 102 '' at screen x_at(x),y_at(legend_y) point pt 7 ps 0.4 lc rgb fitted_color
    set label 103 fitted_name at screen x_at(x+10),y_at(legend_y) font face_11 tc rgb ink
}

set logscale xy 10
set xrange [low:high]
set yrange [low:high]
do for [k=1:n_tics] {
    set xtics add (tic_name[k] tic[k])
    set ytics add (tic_name[k] tic[k])
}
set xlabel 'measured ['.unit_name.']' font face_11 tc rgb faint offset 0,0.2
set ylabel 'predicted ['.unit_name.']' font face_11 tc rgb faint offset 0.5,0
# The band, cut where it leaves the axes.
set object 1 polygon from low,1.1*low to high/1.1,high to high,high to high,0.9*high \
    to low/0.9,low to low,low to low,1.1*low fc rgb '#eeeeee' fs solid noborder behind
set samples 2
plot x with lines lw 1.2*unit lc rgb '#999999', \
    data_tsv using 1:2 with points pt 6 ps 0.6 lw 1.2*unit lc rgb raw_color, \
    data_tsv using 1:(has_fitted ? $3 : NaN) with points pt 7 ps 0.35 lc rgb fitted_color
