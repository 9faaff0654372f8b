# Memory: for each trace bytes over time of its fullest rank, and beside it the peak of every rank.
# Usage: gnuplot -d -c memory.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_memory.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 1200
height = panels_end + (footer eq '' ? 30 : 48)
left = 72
right = 28
panel_height = 260
legend_y = panels_end + 12
load common_gp
load panels_gp

set grid ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set style fill solid noborder
set yrange [0:top_bytes]
set ytics font face_11 tc rgb faint
# What the text of the limit is written on, in a panel of so many pixels: areas are behind it.
text_height = 17.0 / panel_height * top_bytes
text_share(px) = (5.6 * strlen(limit_text) + 14) / px
# The bytes of the first k owners, which lie below the next: columns 5 and on of a row.
total(k) = (sum [c=5:4+k] column(c)) / byte_scale
first = 1
do for [p=1:n_panels] {
    set tmargin at screen y_at(panel_top[p])
    set bmargin at screen y_at(panel_top[p]+panel_height)
    set label 1 name[p] at screen x_at(left),y_at(panel_top[p]-28) font bold(14) tc rgb ink
    if (limit > 0) {
        set arrow 2 from graph 0,first limit to graph 1,first limit nohead dt (6,4) lw 1.2*unit \
            lc rgb '#d55e00' front
        set label 3 limit_text at graph 1,first limit right offset -0.5,0.6 font face(11) \
            tc rgb '#a84300' front
    }
    set ylabel 'memory ['.byte_unit.']' font face(11) tc rgb faint offset 0.5,0
    if (has_time) {
        set label 2 about_time[p] at screen x_at(left),y_at(panel_top[p]-11) font face(11) \
            tc rgb faint
        set lmargin at screen x_at(left)
        set rmargin at screen x_at(middle-40)
        if (limit > 0) {
            set object 3 rectangle from graph 1-text_share(middle-40-left),first limit to graph 1,first limit+text_height \
                fc rgb 'white' fs solid noborder front
        }
        set xrange [0:span]
        set xtics 0,tic_step font face_11 tc rgb faint
        set xlabel 'time ['.time_unit.']' font face(11) tc rgb faint offset 0,0.3
        # The largest sum first: the next ones cover what is not theirs.
        plot for [k=n_owners:1:-1] data_tsv \
            using ($1 == p-1 && strcol(2) eq 'time' ? $4/time_scale : NaN):(total(k)) \
            with filledcurves y1=0 fc rgb owner_color[k] title owner_name[k]
        unset ylabel
        unset label 1
        do for [k=97:100+n_legend] {
            unset label k
            unset object k
        }
    }
    set label 2 about_peaks[p] at screen x_at(middle),y_at(panel_top[p]-11) font face(11) tc rgb faint
    set lmargin at screen x_at(middle)
    set rmargin at screen x_at(width-right)
    if (limit > 0) {
        set object 3 rectangle from graph 1-text_share(width-right-middle),first limit to graph 1,first limit+text_height \
            fc rgb 'white' fs solid noborder front
    }
    set xrange [-0.5:n_ranks[p]-0.5]
    set xtics 0,rank_step[p] font face_11 tc rgb faint
    set xlabel 'pipeline rank' font face(11) tc rgb faint offset 0,0.3
    plot for [k=n_owners:1:-1] data_tsv \
        using ($1 == p-1 && strcol(2) eq 'peak' ? $3 : NaN):(total(k)):(bar_width[p]) \
        with boxes fc rgb owner_color[k] title owner_name[k]
    unset arrow 2
    unset label 3
}
unset multiplot
