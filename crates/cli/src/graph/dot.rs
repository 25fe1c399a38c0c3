//! Writes a [`Picture`] in the language of Graphviz. Boxes are tables in HTML-like labels.

use super::picture::{End, Kind, Picture, PictureBox, State};
use super::svg::Escaped;
use std::fmt::{self, Write as _};

/// The picture as a DOT graph.
pub fn draw(picture: &Picture) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_graph(&mut out, picture);
    out
}

fn write_graph(out: &mut String, picture: &Picture) -> fmt::Result {
    writeln!(out, "graph weft {{")?;
    writeln!(out, "  label = {}", Quoted(&picture.title))?;
    out.push_str(
        "  labelloc = t\n  rankdir = LR\n  ranksep = 1.2\n  fontname = \"Helvetica\"\n  \
         bgcolor = \"white\"\n  node [shape = plain, fontname = \"Helvetica\", fontsize = 11]\n  \
         edge [color = \"#8c959f\"]\n",
    );
    for column in 0..Kind::COLUMNS {
        let here = || {
            let boxes = picture.boxes.iter().enumerate();
            boxes.filter(move |(_, drawn)| drawn.kind.column() == column)
        };
        if here().next().is_none() {
            continue;
        }
        writeln!(out, "  subgraph {{\n    rank = same")?;
        for (index, drawn) in here() {
            write!(out, "    n{index} [label = <")?;
            write_table(out, drawn)?;
            writeln!(out, ">]")?;
        }
        writeln!(out, "  }}")?;
    }
    for line in &picture.lines {
        let style = match line.state {
            State::Unknown => "",
            State::Up => " [color = \"#1a7f37\"]",
            State::Down => " [color = \"#cf222e\", style = dashed]",
            State::Drops => " [color = \"#bc6c00\"]",
        };
        let column = |end: End| picture.boxes[end.index].kind.column();
        let (from, to) = (line.from, line.to);
        let (from, to) = if column(from) <= column(to) { (from, to) } else { (to, from) };
        // Lines within a column leave to the left; others to the right.
        let sides = if column(from) == column(to) { ('w', 'w') } else { ('e', 'w') };
        let name = |end: End| match end.row {
            None => "t".to_owned(),
            Some(row) => format!("r{row}"),
        };
        writeln!(
            out,
            "  n{}:{}:{} -- n{}:{}:{}{style}",
            from.index,
            name(from),
            sides.0,
            to.index,
            name(to),
            sides.1
        )?;
    }
    writeln!(out, "}}")
}

fn write_table(out: &mut String, drawn: &PictureBox) -> fmt::Result {
    let colour = match drawn.kind {
        Kind::Balancer => "#fbefff",
        Kind::Router => "#fff8e5",
        Kind::Switch => "#ddf4ff",
        Kind::Host => "#f0f3f6",
        Kind::Tunnel => "#e6f7ec",
    };
    write!(
        out,
        "<table border=\"1\" cellborder=\"0\" cellspacing=\"0\" cellpadding=\"3\" \
         bgcolor=\"{colour}\"><tr><td port=\"t\" align=\"left\"><b>{}</b>",
        Escaped(&drawn.title)
    )?;
    if !drawn.subtitle.is_empty() {
        write!(out, "<br align=\"left\"/>{}<br align=\"left\"/>", Escaped(&drawn.subtitle))?;
    }
    write!(out, "</td></tr>")?;
    for (number, row) in drawn.rows.iter().enumerate() {
        let colour = match row.state {
            State::Unknown | State::Up => "#1f2328",
            State::Down => "#a40e26",
            State::Drops => "#8a4b00",
        };
        let text = row.cells.join("   ");
        write!(
            out,
            "<tr><td port=\"r{number}\" align=\"left\"><font color=\"{colour}\">{}</font></td></tr>",
            Escaped(&text)
        )?;
    }
    write!(out, "</table>")
}

/// A quoted identifier of DOT.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                control if control.is_control() => f.write_char(' ')?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}
