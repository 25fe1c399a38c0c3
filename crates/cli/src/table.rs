//! Text tables without borders. Each column is as wide as its widest cell.

use std::fmt;

/// The alignment of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    Left,
    Right,
}

/// A table with a heading line.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these headings.
    pub fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let columns = columns.map(|(heading, align)| (heading.to_owned(), align));
        Self { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row; an empty cell is shown as `-`.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        self.rows.push(cells.map(shown).into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let lines = || std::iter::once(&headings).chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for line in lines() {
            let mut text = String::new();
            for ((cell, &width), (_, align)) in line.iter().zip(&widths).zip(&self.columns) {
                text += &match align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table =
            Table::new([("PORT", Align::Left), ("RX", Align::Right), ("D", Align::Left)]);
        table.row(["vm1".to_owned(), "7".to_owned(), String::new()]);
        table.row(["database".to_owned(), "1234".to_owned(), "é".to_owned()]);
        let text = "PORT        RX  D\nvm1          7  -\ndatabase  1234  é\n";
        assert_eq!(table.to_string(), text);
        assert_eq!(Table::new([("A", Align::Left)]).to_string(), "A\n");
    }
}
