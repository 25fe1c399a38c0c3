//! Draws a [`Picture`] as SVG. It has an opaque background, so it is legible on any page. A style
//! for `prefers-color-scheme: dark` is included.

use super::layout::{self, Layout, MARGIN, PADDING, ROW_HEIGHT, TITLE};
use super::picture::{End, Kind, Line, Picture, PictureBox, State};
use std::fmt::{self, Write as _};

const STYLE: &str = "\
text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1f2328}\
.t{font:bold 14px 'DejaVu Sans',Helvetica,Arial,sans-serif}\
.h{font:bold 17px 'DejaVu Sans',Helvetica,Arial,sans-serif}\
.s{font:11px 'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#59636e}\
.bg{fill:#ffffff}\
.box{fill:#f6f8fa;stroke:#8c959f}\
.router .box{fill:#fff8e5;stroke:#bf8700}\
.balancer .box{fill:#fbefff;stroke:#8250df}\
.switch .box{fill:#ddf4ff;stroke:#0969da}\
.host .box{fill:#f0f3f6;stroke:#57606a}\
.tunnel .box{fill:#e6f7ec;stroke:#1a7f37}\
.line{fill:none;stroke:#8c959f;stroke-width:1.3}\
.line.down{stroke:#cf222e;stroke-dasharray:5 3}\
.line.drops{stroke:#bc6c00}\
.line.up{stroke:#1a7f37}\
.mark.up{fill:#1a7f37}\
.mark.down{fill:none;stroke:#cf222e;stroke-width:2}\
.mark.drops{fill:#bc6c00}\
text.down{fill:#a40e26}\
text.drops{fill:#8a4b00}\
@media (prefers-color-scheme:dark){\
text{fill:#e6edf3}.s{fill:#9aa4af}.bg{fill:#0d1117}\
.box{fill:#161b22;stroke:#6e7681}\
.router .box{fill:#2a2111;stroke:#bb8009}\
.balancer .box{fill:#241a35;stroke:#a371f7}\
.switch .box{fill:#0c2238;stroke:#388bfd}\
.host .box{fill:#1b2028;stroke:#8b949e}\
.tunnel .box{fill:#10261a;stroke:#3fb950}\
.line{stroke:#6e7681}.line.down{stroke:#f85149}.line.drops{stroke:#d29922}.line.up{stroke:#3fb950}\
.mark.up{fill:#3fb950}.mark.down{stroke:#f85149}.mark.drops{fill:#d29922}\
text.down{fill:#ff7b72}text.drops{fill:#e3b341}}";

/// If there are more lines than this, they are drawn semi-transparent.
const MANY_LINES: usize = 30;

/// The picture as an SVG document.
pub fn draw(picture: &Picture) -> String {
    let layout = Layout::new(picture);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_document(&mut out, picture, &layout);
    out
}

fn write_document(out: &mut String, picture: &Picture, layout: &Layout) -> fmt::Result {
    let Layout { width, height, .. } = layout;
    let title = Escaped(&picture.title);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<rect class=\"bg\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"h\" x=\"{MARGIN}\" y=\"{}\">{title}</text>",
        MARGIN + TITLE / 2 - 4
    )?;
    // Many lines are semi-transparent, so that they do not hide each other.
    let opacity = if picture.lines.len() > MANY_LINES { " opacity=\"0.55\"" } else { "" };
    writeln!(out, "<g{opacity}>")?;
    for line in &picture.lines {
        write_line(out, picture, layout, line)?;
    }
    writeln!(out, "</g>")?;
    for (drawn, place) in picture.boxes.iter().zip(&layout.places) {
        write_box(out, drawn, place)?;
    }
    write_legend(out, picture, layout)?;
    writeln!(out, "</svg>")
}

fn write_line(out: &mut String, picture: &Picture, layout: &Layout, line: &Line) -> fmt::Result {
    let column = |end: End| picture.boxes[end.index].kind.column();
    let (from, to) = if column(line.from) <= column(line.to) {
        (line.from, line.to)
    } else {
        (line.to, line.from)
    };
    let [from_y, to_y] = [from, to].map(|end| layout.height_of(picture, end));
    let (left, right) = (&layout.places[from.index], &layout.places[to.index]);
    let class = line.state.name();
    if column(from) == column(to) {
        let curvature = layout.curvature(from_y, to_y) * 4 / 3;
        let (a, b) = (left.x, right.x);
        return writeln!(
            out,
            "<path class=\"line {class}\" d=\"M{a} {from_y}C{} {from_y} {} {to_y} {b} {to_y}\"/>",
            a - curvature,
            b - curvature
        );
    }
    let (a, b) = (left.x + left.width, right.x);
    let middle = i32::midpoint(a, b);
    writeln!(
        out,
        "<path class=\"line {class}\" d=\"M{a} {from_y}C{middle} {from_y} {middle} {to_y} \
         {b} {to_y}\"/>"
    )
}

fn write_box(out: &mut String, drawn: &PictureBox, place: &layout::PlacedBox) -> fmt::Result {
    let layout::PlacedBox { x, y, width, height, cells } = place;
    writeln!(
        out,
        "<g class=\"{}\">\n<rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
         height=\"{height}\" rx=\"6\"/>\n<text class=\"t\" x=\"{}\" y=\"{}\">{}</text>",
        drawn.kind.name(),
        x + PADDING,
        y + 18,
        Escaped(&layout::shown(&drawn.title))
    )?;
    if !drawn.subtitle.is_empty() {
        writeln!(
            out,
            "<text class=\"s\" x=\"{}\" y=\"{}\">{}</text>",
            x + PADDING,
            y + 35,
            Escaped(&layout::shown(&drawn.subtitle))
        )?;
    }
    let top = y + layout::heading_height(drawn);
    for (number, row) in (0..).zip(&drawn.rows) {
        let base = top + number * ROW_HEIGHT + 13;
        let tip: Vec<_> = row.tip.lines().map(|line| Escaped(line).to_string()).collect();
        write!(out, "<g><title>{}</title>", tip.join("\n"))?;
        write_mark(out, row.state, x + PADDING, base - 4)?;
        let class = match row.state {
            State::Down | State::Drops => format!(" class=\"{}\"", row.state.name()),
            State::Up | State::Unknown => String::new(),
        };
        for (cell, offset) in row.cells.iter().zip(cells) {
            let text = layout::shown(cell);
            write!(
                out,
                "<text{class} x=\"{}\" y=\"{base}\">{}</text>",
                x + offset,
                Escaped(&text)
            )?;
        }
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</g>")
}

/// Draws the mark of a state: a disc, a cross or a triangle, so that colour is not the only
/// difference.
fn write_mark(out: &mut String, state: State, x: i32, y: i32) -> fmt::Result {
    let class = state.name();
    match state {
        State::Unknown => Ok(()),
        State::Up => write!(out, "<circle class=\"mark {class}\" cx=\"{x}\" cy=\"{y}\" r=\"4\"/>"),
        State::Down => {
            write!(out, "<path class=\"mark {class}\" d=\"M{} {}l7 7m0 -7l-7 7\"/>", x - 3, y - 3)
        }
        State::Drops => {
            write!(out, "<path class=\"mark {class}\" d=\"M{} {}h10l-5 -9z\"/>", x - 5, y + 4)
        }
    }
}

fn write_legend(out: &mut String, picture: &Picture, layout: &Layout) -> fmt::Result {
    let y = layout.height - MARGIN;
    let mut x = MARGIN;
    if picture.is_live {
        for (state, text) in
            [(State::Up, "up"), (State::Drops, "up, has dropped packets"), (State::Down, "not up")]
        {
            write_mark(out, state, x + 5, y - 4)?;
            writeln!(out, "<text class=\"s\" x=\"{}\" y=\"{y}\">{text}</text>", x + 15)?;
            x += 34 + 6 * i32::try_from(text.len()).unwrap_or(0);
        }
        return Ok(());
    }
    let count = |kind: Kind| picture.boxes.iter().filter(|drawn| drawn.kind == kind).count();
    let counts = [
        (count(Kind::Balancer), "load balancer", "s"),
        (count(Kind::Router), "router", "s"),
        (count(Kind::Switch), "switch", "es"),
        (count(Kind::Host), "host", "s"),
    ];
    let counts = counts.into_iter().filter(|(count, ..)| *count != 0);
    let texts: Vec<_> = counts
        .map(|(count, one, ending)| {
            format!("{count} {one}{}", if count == 1 { "" } else { ending })
        })
        .collect();
    writeln!(out, "<text class=\"s\" x=\"{x}\" y=\"{y}\">{}</text>", texts.join(", "))
}

/// A text escaped for XML, on one line. Control characters, and characters that XML forbids, are
/// replaced.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                control if control.is_control() => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
