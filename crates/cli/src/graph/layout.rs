//! Places the boxes of a [`Picture`] in columns. All numbers are whole pixels, so that the same
//! picture has the same layout everywhere.

use super::picture::{End, Kind, Picture, PictureBox};

/// The width of a character of a row. Rows have a monospaced font of 12 pixels.
const CHARACTER: i32 = 74;
/// The unit of [`CHARACTER`]: tenths of a pixel.
const TENTHS: i32 = 10;
pub const ROW_HEIGHT: i32 = 18;
const TITLE_HEIGHT: i32 = 24;
const SUBTITLE_HEIGHT: i32 = 16;
/// Space below the last row.
const BOTTOM: i32 = 6;
/// Space left and right of the text of a box. The left space holds the mark of the state.
pub const PADDING: i32 = 14;
/// Space between the cells of a row.
const CELL_GAP: i32 = 14;
const BOX_GAP: i32 = 22;
const LEAST_WIDTH: i32 = 110;
/// Space around the picture.
pub const MARGIN: i32 = 24;
/// The height of the title and of the legend.
pub const TITLE: i32 = 40;
pub const LEGEND: i32 = 34;
/// The maximum length of the text of a cell. Longer texts are cut.
pub const MAX_CELL_CHARACTERS: usize = 46;
/// The minimum and maximum distance by which a line between boxes of one column bulges to the left.
const MIN_CURVATURE: i32 = 22;
const MAX_CURVATURE: i32 = 120;

/// The position and size of a box.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PlacedBox {
    pub x: i32,
    pub y: i32,
    pub width: i32,
    pub height: i32,
    /// The left ends of the cells, from the left end of the box.
    pub cells: Vec<i32>,
}

/// The places of all boxes, and the size of the picture.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    pub places: Vec<PlacedBox>,
    pub width: i32,
    pub height: i32,
}

impl Layout {
    pub fn new(picture: &Picture) -> Self {
        let mut layout =
            Self { places: picture.boxes.iter().map(sized).collect(), ..Self::default() };
        layout.stack(picture);
        layout.place_columns(picture);
        layout
    }

    /// The height at which lines meet a row or heading, from the top of the picture.
    pub fn height_of(&self, picture: &Picture, end: End) -> i32 {
        self.places[end.index].y + within(&picture.boxes[end.index], end.row)
    }

    /// The distance by which a line between two boxes of one column bulges to the left.
    pub fn curvature(&self, from_y: i32, to_y: i32) -> i32 {
        (MIN_CURVATURE + (from_y - to_y).abs() / 12).min(MAX_CURVATURE)
    }

    /// Chooses the vertical positions. Switches are in the order of the file. The boxes of each
    /// other column are placed close to the boxes of the next column that they are joined to.
    fn stack(&mut self, picture: &Picture) {
        let columns: Vec<Vec<usize>> = (0..Kind::COLUMNS)
            .map(|column| {
                let is_here = |index: &usize| picture.boxes[*index].kind.column() == column;
                (0..picture.boxes.len()).filter(is_here).collect()
            })
            .collect();
        let [first, switches, hosts, tunnels] = &columns[..] else { return };
        let mut y = MARGIN + TITLE;
        // The longer of the two columns is stacked without gaps; the other one follows it.
        let length = |column: &[usize]| -> i32 {
            column.iter().map(|&index| self.places[index].height + BOX_GAP).sum()
        };
        let (lead, follow) =
            if length(switches) >= length(hosts) { (switches, hosts) } else { (hosts, switches) };
        for &index in lead {
            self.places[index].y = y;
            y += self.places[index].height + BOX_GAP;
        }
        self.follow(picture, follow, lead);
        let mut first = first.clone();
        let preferred_y: Vec<i32> = (0..picture.boxes.len())
            .map(|index| self.preferred_y(picture, index, switches))
            .collect();
        first.sort_by_key(|&index| preferred_y[index]);
        self.follow(picture, &first, switches);
        self.follow(picture, tunnels, hosts);
    }

    /// The vertical position of a box at which its lines to the boxes `others` are horizontal on
    /// average.
    fn preferred_y(&self, picture: &Picture, index: usize, others: &[usize]) -> i32 {
        let (mut sum, mut count) = (0, 0);
        for line in &picture.lines {
            for (own, other) in [(line.from, line.to), (line.to, line.from)] {
                if own.index == index && others.contains(&other.index) {
                    let at = self.height_of(picture, other);
                    sum += i64::from(at - within(&picture.boxes[index], own.row));
                    count += 1;
                }
            }
        }
        match count {
            0 => MARGIN + TITLE,
            // The cast is lossless, because the value is a mean of i32 values.
            count => (sum / count) as i32,
        }
    }

    /// Places the boxes of a column as close as possible to their wanted heights, in this order and
    /// without overlaps: neighbours that would overlap form a block at their mean height.
    fn follow(&mut self, picture: &Picture, column: &[usize], others: &[usize]) {
        struct Block {
            first: usize,
            /// The sum of the wanted positions of its boxes, each minus the total height of the
            /// boxes above it.
            sum: i64,
            count: i64,
        }
        let mut above = 0;
        let mut offsets = Vec::new();
        let mut blocks: Vec<Block> = Vec::new();
        for (place, &index) in column.iter().enumerate() {
            let preferred_y = self.preferred_y(picture, index, others).max(MARGIN + TITLE) - above;
            offsets.push(above);
            above += self.places[index].height + BOX_GAP;
            blocks.push(Block { first: place, sum: preferred_y.into(), count: 1 });
            while let [.., before, last] = &mut blocks[..] {
                if before.sum * last.count <= last.sum * before.count {
                    break;
                }
                before.sum += last.sum;
                before.count += last.count;
                blocks.pop();
            }
        }
        for (number, block) in blocks.iter().enumerate() {
            let end = blocks.get(number + 1).map_or(column.len(), |next| next.first);
            for place in block.first..end {
                // The cast is lossless, because the value is a mean of i32 values.
                let top = (block.sum / block.count) as i32;
                self.places[column[place]].y =
                    (top + offsets[place]).max(MARGIN + TITLE + offsets[place]);
            }
        }
    }

    /// Chooses the horizontal positions of the columns, and the size of the picture.
    fn place_columns(&mut self, picture: &Picture) {
        let curved = picture.lines.iter().filter(|line| {
            let column = |end: End| picture.boxes[end.index].kind.column();
            column(line.from) == column(line.to)
        });
        let mut room = [0; Kind::COLUMNS];
        for line in curved {
            let column = picture.boxes[line.from.index].kind.column();
            let ends = [line.from, line.to].map(|end| self.height_of(picture, end));
            room[column] = room[column].max(self.curvature(ends[0], ends[1]));
        }
        let mut x = MARGIN;
        for (column, room) in room.into_iter().enumerate() {
            let here: Vec<usize> = (0..picture.boxes.len())
                .filter(|&index| picture.boxes[index].kind.column() == column)
                .collect();
            let Some(width) = here.iter().map(|&index| self.places[index].width).max() else {
                continue;
            };
            x += room;
            for &index in &here {
                self.places[index].x = x;
                self.places[index].width = width;
            }
            let leaving = picture
                .lines
                .iter()
                .filter(|line| [line.from, line.to].iter().any(|end| here.contains(&end.index)));
            let lines = i32::try_from(leaving.count()).unwrap_or(i32::MAX);
            x += width + 70 + lines.min(150);
            self.width = self.width.max(self.places[here[0]].x + width + MARGIN);
        }
        let bottom = self.places.iter().map(|place| place.y + place.height).max();
        self.height = bottom.unwrap_or(MARGIN + TITLE) + MARGIN + LEGEND;
        let title = i32::try_from(picture.title.chars().count()).unwrap_or(i32::MAX / 16);
        self.width = self.width.max(title * 10 + 2 * MARGIN).max(460);
    }
}

/// The vertical centre of a row or heading, from the top of its box.
fn within(drawn: &PictureBox, row: Option<usize>) -> i32 {
    match row.and_then(|row| i32::try_from(row).ok()) {
        None => TITLE_HEIGHT / 2 + 2,
        Some(row) => heading_height(drawn) + row * ROW_HEIGHT + ROW_HEIGHT / 2,
    }
}

/// The height of title and subtitle.
pub fn heading_height(drawn: &PictureBox) -> i32 {
    TITLE_HEIGHT + if drawn.subtitle.is_empty() { 0 } else { SUBTITLE_HEIGHT } + 4
}

/// The text of a cell as it is drawn.
pub fn shown(cell: &str) -> String {
    if cell.chars().count() <= MAX_CELL_CHARACTERS {
        return cell.to_owned();
    }
    let kept: String = cell.chars().take(MAX_CELL_CHARACTERS - 1).collect();
    kept + "…"
}

/// The width of a text in a row. A character beyond ASCII may be twice as wide.
fn text_width(text: &str) -> i32 {
    let tenths: i32 = text
        .chars()
        .map(|character| if character.is_ascii() { CHARACTER } else { 2 * CHARACTER })
        .sum();
    tenths / TENTHS + 1
}

/// A place with a size but without coordinates.
fn sized(drawn: &PictureBox) -> PlacedBox {
    let columns = drawn.rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
    let mut x = PADDING + 10;
    let mut cells = Vec::new();
    for column in 0..columns {
        cells.push(x);
        let widths = drawn.rows.iter().filter_map(|row| row.cells.get(column));
        x += widths.map(|cell| text_width(&shown(cell))).max().unwrap_or(0) + CELL_GAP;
    }
    // The font of the title is wider than that of rows.
    let heading =
        (text_width(&shown(&drawn.title)) * 5 / 4).max(text_width(&shown(&drawn.subtitle)));
    let rows = i32::try_from(drawn.rows.len()).unwrap_or(i32::MAX / ROW_HEIGHT / 2);
    let height = heading_height(drawn) + rows * ROW_HEIGHT + BOTTOM;
    let width = (x - CELL_GAP + PADDING).max(heading + 2 * PADDING).max(LEAST_WIDTH);
    PlacedBox { width, height, cells, ..PlacedBox::default() }
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Line, Row, State};
    use super::*;

    fn boxed(kind: Kind, title: &str, rows: usize) -> PictureBox {
        let rows = (0..rows)
            .map(|row| Row { cells: vec![format!("row {row}")], ..Row::default() })
            .collect();
        PictureBox { kind, title: title.to_owned(), subtitle: String::new(), rows }
    }

    /// A picture of as many hosts as switches. Row r of switch n is joined to row r of host n + r *
    /// `shift`, modulo the number of switches.
    fn picture(switches: usize, rows: usize, shift: usize) -> Picture {
        let mut picture = Picture::default();
        for number in 0..switches {
            picture.boxes.push(boxed(Kind::Switch, &format!("s{number}"), rows));
        }
        for number in 0..switches {
            picture.boxes.push(boxed(Kind::Host, &format!("h{number}"), rows));
            picture.boxes.push(boxed(Kind::Router, &format!("r{number}"), 1));
        }
        for number in 0..switches {
            for row in 0..rows {
                let host = switches + 2 * ((number + row * shift) % switches);
                picture.lines.push(Line {
                    from: End { index: number, row: Some(row) },
                    to: End { index: host, row: Some(row) },
                    state: State::Unknown,
                });
            }
            let router = End { index: switches + 2 * number + 1, row: Some(0) };
            let to = End { index: switches - 1 - number, row: None };
            picture.lines.push(Line { from: router, to, state: State::Unknown });
        }
        picture
    }

    #[test]
    fn boxes_do_not_overlap_and_are_within_the_picture() {
        for (switches, rows, shift) in [(1, 0, 0), (1, 1, 0), (3, 7, 1), (20, 10, 3), (200, 1, 7)] {
            let picture = picture(switches, rows, shift);
            let layout = Layout::new(&picture);
            let places = || layout.places.iter().enumerate();
            for (one, a) in places() {
                assert!(a.x >= 0 && a.x + a.width <= layout.width, "{a:?}");
                assert!(a.y >= TITLE && a.y + a.height <= layout.height - LEGEND, "{a:?}");
                for (_, b) in places().filter(|(other, _)| *other > one) {
                    let apart = a.x + a.width < b.x
                        || b.x + b.width < a.x
                        || a.y + a.height < b.y
                        || b.y + b.height < a.y;
                    assert!(apart, "{switches} {rows}: {a:?} {b:?}");
                }
            }
            assert_eq!(layout, Layout::new(&picture));
        }
    }

    #[test]
    fn routers_are_in_the_order_of_their_switches() {
        let layout = Layout::new(&picture(5, 3, 0));
        let routers: Vec<i32> = (0..5).map(|number| layout.places[5 + 2 * number + 1].y).collect();
        assert!(routers.is_sorted_by(|a, b| a > b), "{routers:?}");
    }

    #[test]
    fn long_cells_are_cut() {
        let long = "x".repeat(200);
        assert_eq!(shown(&long).chars().count(), MAX_CELL_CHARACTERS);
        assert!(shown(&long).ends_with('…'));
        assert_eq!(shown("é"), "é");
    }
}
