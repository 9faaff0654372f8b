# A timeline: one row per pipeline rank, panels above each other on one time axis.
# Usage: gnuplot -d -c timeline.gp svg|png SETTINGS > PICTURE.  cli/draw/plot_timeline.c makes the settings;
# cli/draw/picture.c adds where the numbers and the other scripts are.
format = ARG1
load ARG2
width = 1200
height = layout_height + (footer eq '' ? 0 : 18)
left = 64
right = 28
legend_y = layout_height - 16
hatch_color = '#e0e0e0'
load common_gp
load panels_gp

# The legend's last box is the bubble, hatched as it is drawn.
bubble_x = x - 44 - 6.4 * strlen(legend_name[n_legend])
set object 199 rectangle from screen x_at(bubble_x),y_at(legend_y-5) to screen x_at(bubble_x+14),y_at(legend_y+5) \
    fc rgb hatch_color fs transparent pattern 4 noborder front
set label 99 legend_note at screen x_at(width-right),y_at(legend_y) right font face(11) tc rgb faint
set format x '%g'
set grid xtics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set lmargin at screen x_at(left)
set rmargin at screen x_at(width-right)
ylabel_text = 'pipeline rank'
set ylabel ylabel_text font face(11) tc rgb faint offset 1,0
do for [p=1:n_panels] {
    if (p == 2) {
        unset object 199
        do for [k=97:100+n_legend] {
            unset label k
            unset object k
        }
    }
    set tmargin at screen y_at(top[p])
    set bmargin at screen y_at(top[p]+rows[p]*row_px[p])
    edge = copy_left[p] > 0 ? copy_left[p] - 30 : width - right
    set rmargin at screen x_at(edge)
    set xrange [0:span*(edge-left)/real(width-right-left)]
    set yrange [rows[p]-0.5:-0.5]
    set ytics 0,tic_every[p] font face_10 tc rgb faint
    if (n_fold_tics > 0) {
        set xtics () font face_11 tc rgb faint
        do for [k=1:n_fold_tics] { set xtics add (fold_tic_name[k] fold_tic[k]) }
        # The fold: a gap between two torn edges.
        set object 4 rectangle from fold_from,-0.52 to fold_to,rows[p]-0.48 fc rgb 'white' fs solid noborder front
        set arrow 4 from fold_from,-0.52 to fold_from,rows[p]-0.48 nohead dt (2,2) lw unit lc rgb faint front
        set arrow 5 from fold_to,-0.52 to fold_to,rows[p]-0.48 nohead dt (2,2) lw unit lc rgb faint front
        set label 5 '···' at (fold_from+fold_to)/2,rows[p]/2.0-0.5 center font bold(14) tc rgb faint front
    } else {
        set xtics 0,tic_step font face_11 tc rgb faint
    }
    if (p == n_panels) {
        set xlabel 'time ['.time_unit.']' font face(11) tc rgb faint offset 0,0.3
    }
    set label 1 name[p] at screen x_at(left),y_at(top[p]-28) font bold(14) tc rgb ink
    set label 2 about[p] at screen x_at(left),y_at(top[p]-11) left font face(11) tc rgb faint
    # What is left of this is bubble.
    set object 1 rectangle from 0,-0.5 to end[p],rows[p]-0.5 fc rgb bubble_color fs solid noborder \
        behind
    set object 3 rectangle from 0,-0.5 to end[p],rows[p]-0.5 fc rgb hatch_color fs transparent pattern 4 noborder \
        behind
    set arrow 1 from end[p],-0.5 to end[p],rows[p]-0.5 nohead lw 1.2*unit lc rgb ink front
    if (callout[p] ne '') {
        set label 3 callout[p] at end[p],rows[p]/2.0-0.5 left offset 1,0.8 font bold(26) tc rgb ink front
        set label 4 callout_below[p] at end[p],rows[p]/2.0-0.5 left offset 1,-0.9 font face(13) \
            tc rgb faint front
    }
    plot data_tsv using ($1 == p-1 && $3 == 0 ? $11/time_scale : NaN):($2/every[p]):($9/time_scale):(0):10 \
            with vectors nohead lw box_px[p]*unit lc rgb variable title 'ops', \
         data_tsv using ($1 == p-1 && $3 == 1 ? $11/time_scale : NaN):($2/every[p]+0.32):($9/time_scale):(0):10 \
            with vectors nohead lw 0.3*box_px[p]*unit lc rgb variable title 'beside', \
         labels_tsv using ($1 == p-1 && copy_left[p] <= 0 ? $3/time_scale : NaN):($2/every[p]):4:5 \
            with labels center font face(label_px[p]) tc rgb variable title 'labels'
    unset label 3
    unset label 4
    if (copy_left[p] > 0) {
        # A magnified copy: lower, framed, with an axis of its own.
        unset label 1
        unset arrow 1
        unset ylabel
        set label 2 copy_name[p] at screen x_at(width-right),y_at(copy_top[p]-11) right
        set border 15 lw 0.8*unit lc rgb faint
        set tmargin at screen y_at(copy_top[p])
        set lmargin at screen x_at(copy_left[p])
        set rmargin at screen x_at(width-right)
        set xrange [0:end[p]]
        set xtics autofreq font face_11 tc rgb faint
        set ytics format ''
        copy_px = box_px[p] * copy_height
        plot data_tsv using ($1 == p-1 && $3 == 0 ? $11/time_scale : NaN):($2/every[p]):($9/time_scale):(0):10 \
                with vectors nohead lw copy_px*unit lc rgb variable title 'ops', \
             data_tsv using ($1 == p-1 && $3 == 1 ? $11/time_scale : NaN):($2/every[p]+0.32):($9/time_scale):(0):10 \
                with vectors nohead lw 0.3*copy_px*unit lc rgb variable title 'beside', \
             labels_tsv using ($1 == p-1 ? $3/time_scale : NaN):($2/every[p]):4:5 \
                with labels center font face(label_px[p]) tc rgb variable title 'labels'
        set border 0
        set lmargin at screen x_at(left)
        set ytics format '%g'
        set ylabel ylabel_text font face(11) tc rgb faint offset 1,0
    }
}
unset multiplot
