# Several panels of one width above each other: title, legend of boxes and footer.
# Loaded after common.gp; the legend lies at legend_y.
set multiplot
if (title ne '') {
    set label 100 title at screen x_at(left),y_at(24) font bold(17) tc rgb ink
}
# 6.4 is the width of a letter of DejaVu Sans at 11, and more.
x = left
do for [k=1:n_legend] {
    set object 100+k rectangle from screen x_at(x),y_at(legend_y-5) \
        to screen x_at(x+14),y_at(legend_y+5) fc rgb legend_color[k] fs solid noborder front
    set label 100+k legend_name[k] at screen x_at(x+20),y_at(legend_y) font face(11) tc rgb ink
    x = x + 44 + 6.4 * strlen(legend_name[k])
}
if (footer ne '') {
    set label 97 footer at screen x_at(left),y_at(legend_y+22) font face(9) tc rgb faint
}
