# What every script begins with: the terminal, the kind of data, fonts and colours.
# A script sets format (svg or png), width and height, and loads this.  All lengths are pixels.
set encoding utf8
font_name = 'sans-serif'
if (format eq 'svg') {
    set terminal svg noenhanced size width,height background rgb 'white' name 'degas' \
        font font_name.',12'
    unit = 1.0
} else {
    set terminal pngcairo noenhanced size width,height background rgb 'white' \
        font font_name.',12' fontscale 0.75
    unit = 1.0
}
set datafile separator tab
set datafile columnheaders
set datafile missing 'nan'
set key noautotitle
unset key
ink = '#333333'
faint = '#777777'
face(px) = sprintf('%s,%.1f', font_name, px)
# The SVG terminal writes a font's name as it is into an attribute, and knows no weight.
heavy = format eq 'svg' ? '" font-weight="bold' : ':Bold'
bold(px) = sprintf('%s%s,%.1f', font_name, heavy, px)
face_10 = face(10)
face_11 = face(11)
x_at(px) = real(px) / width
y_at(px) = 1 - real(px) / height
set border 0
set tics scale 0 nomirror
