# One pair of axes between left, right, top and bottom, below a title and a line of text.
# Loaded after common.gp.
set label 98 title at screen x_at(left),y_at(26) font bold(17) tc rgb ink
set label 99 subtitle at screen x_at(left),y_at(48) font face(12) tc rgb faint
set grid xtics ytics lt 1 lw 0.6*unit lc rgb '#dddddd' back
set lmargin at screen x_at(left)
set rmargin at screen x_at(width-right)
set tmargin at screen y_at(top)
set bmargin at screen y_at(bottom)
set xtics () font face_11 tc rgb faint
set ytics () font face_11 tc rgb faint
