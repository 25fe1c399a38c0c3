//! [`View`]: the content of the screen, and its changes by keys. It does not access the terminal:
//! it converts samples to lines for a screen size.

use super::keys::Key;
use super::sample::{PortSample, Sample, Traffic, TunnelSample};
use crate::units::{scaled, scaled_count};
use std::cmp::Ordering;
use std::time::Duration;

/// The number of lines above the heading of the table.
const HEAD_LINES: usize = 4;
/// The smallest screen. On a smaller one, only a message is shown.
const LEAST_WIDTH: usize = 30;
const LEAST_HEIGHT: usize = HEAD_LINES + 3;
/// The width to which names are cut to make room for other columns, and the maximum width.
const NAME_WIDTH: usize = 24;
const MAX_NAME_WIDTH: usize = 40;
/// The width to which states are cut.
const STATE_WIDTH: usize = 20;

/// The style of a piece of text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Style {
    #[default]
    Plain,
    Bold,
    /// Headings of a table.
    Reverse,
    /// The heading of the column that the table is sorted by.
    Sorted,
    Good,
    Warning,
    Bad,
    Dim,
}

/// A line of the screen.
pub type Line = Vec<(Style, String)>;

/// The tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Table {
    #[default]
    Ports,
    Tunnels,
}

/// A column of the tables, by which they can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Column {
    Name,
    Switch,
    State,
    RxPackets,
    #[default]
    RxBits,
    TxPackets,
    TxBits,
    Drops,
}

impl Column {
    const ALL: [Self; 8] = [
        Self::Name,
        Self::Switch,
        Self::State,
        Self::RxPackets,
        Self::RxBits,
        Self::TxPackets,
        Self::TxBits,
        Self::Drops,
    ];

    const fn is_text(self) -> bool {
        matches!(self, Self::Name | Self::Switch | Self::State)
    }

    const fn heading(self, table: Table) -> &'static str {
        match (self, table) {
            (Self::Name, Table::Ports) => "PORT",
            (Self::Name, Table::Tunnels) => "REMOTE",
            (Self::Switch, Table::Ports) => "SWITCH",
            (Self::Switch, Table::Tunnels) => "TUNNEL",
            (Self::State, Table::Ports) => "STATE",
            (Self::State, Table::Tunnels) => "NEIGHBOUR",
            (Self::RxPackets, _) => "RX PKT/S",
            (Self::RxBits, _) => "RX BIT/S",
            (Self::TxPackets, _) => "TX PKT/S",
            (Self::TxBits, _) => "TX BIT/S",
            (Self::Drops, Table::Ports) => "DROPS/S",
            (Self::Drops, Table::Tunnels) => "PATH MTU",
        }
    }

    /// The columns by importance, the most important first. A narrow screen omits the last ones.
    const BY_IMPORTANCE: [Self; 8] = [
        Self::Name,
        Self::RxBits,
        Self::TxBits,
        Self::Drops,
        Self::RxPackets,
        Self::TxPackets,
        Self::State,
        Self::Switch,
    ];
}

/// A row of a table.
struct Row<'a> {
    name: &'a str,
    switch: &'a str,
    state: &'a str,
    traffic: Traffic,
    /// The value of the last column: drops of a port, or the path MTU of an end point.
    last: f64,
    reasons: &'a [(String, f64)],
    table: Table,
}

impl<'a> Row<'a> {
    fn of_port(port: &'a PortSample) -> Self {
        Self {
            name: &port.name,
            switch: &port.logical_switch,
            state: &port.state,
            traffic: port.traffic,
            last: port.drops,
            reasons: &port.drop_reasons,
            table: Table::Ports,
        }
    }

    fn of_tunnel(tunnel: &'a TunnelSample) -> Self {
        Self {
            name: &tunnel.remote,
            switch: &tunnel.tunnel,
            state: &tunnel.neighbour,
            traffic: tunnel.traffic,
            last: tunnel.path_mtu.into(),
            reasons: &[],
            table: Table::Tunnels,
        }
    }

    fn text(&self, column: Column) -> String {
        match column {
            Column::Name => printable(self.name),
            Column::Switch => printable(self.switch),
            Column::State => printable(self.state),
            Column::Drops if self.table == Table::Tunnels => self.last.to_string(),
            number => scaled(self.number(number)),
        }
    }

    fn number(&self, column: Column) -> f64 {
        match column {
            Column::RxPackets => self.traffic.rx_packets,
            Column::RxBits => self.traffic.rx_bits,
            Column::TxPackets => self.traffic.tx_packets,
            Column::TxBits => self.traffic.tx_bits,
            Column::Drops => self.last,
            Column::Name | Column::Switch | Column::State => 0.0,
        }
    }

    fn is_up(&self) -> bool {
        match self.table {
            Table::Ports => self.state == "up",
            Table::Tunnels => self.state != "unresolved",
        }
    }

    fn compare(&self, other: &Self, column: Column) -> Ordering {
        match column {
            Column::Name => self.name.cmp(other.name),
            Column::Switch => self.switch.cmp(other.switch),
            Column::State => self.state.cmp(other.state),
            number => self.number(number).total_cmp(&other.number(number)),
        }
    }
}

/// The action that a key requests from the main loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    None,
    Quit,
    Suspend,
}

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub sample: Option<Sample>,
    /// Why there are no newer samples, and for how long.
    pub failure: Option<(String, Duration)>,
    interval: Duration,
    table: Table,
    column: Column,
    is_reversed: bool,
    pub is_paused: bool,
    is_help_shown: bool,
    /// The first row of the table that is shown.
    top: usize,
    /// The number of rows that fit on the screen when it was last drawn.
    page: usize,
}

impl View {
    /// The table of ports, without a sample.
    pub fn new(interval: Duration, column: Column) -> Self {
        Self { interval, column, ..Self::default() }
    }

    /// Applies a key.
    pub fn press(&mut self, key: Key) -> KeyAction {
        let column = Column::ALL.iter().position(|&column| column == self.column).unwrap_or(0);
        let step = |by: usize| Column::ALL[(column + by) % Column::ALL.len()];
        if self.is_help_shown && !matches!(key, Key::Interrupt | Key::Suspend) {
            self.is_help_shown = false;
            if key != Key::Character('q') {
                return KeyAction::None;
            }
        }
        match key {
            Key::Interrupt | Key::Character('q' | 'Q') => return KeyAction::Quit,
            Key::Suspend => return KeyAction::Suspend,
            Key::Character('s' | '>') | Key::Right => self.column = step(1),
            Key::Character('<') | Key::Left => self.column = step(Column::ALL.len() - 1),
            Key::Character('r') => self.is_reversed ^= true,
            Key::Character('p' | ' ') => self.is_paused ^= true,
            Key::Character('t') => {
                self.table = match self.table {
                    Table::Ports => Table::Tunnels,
                    Table::Tunnels => Table::Ports,
                };
                self.top = 0;
            }
            Key::Character('?' | 'h') => self.is_help_shown = true,
            Key::Up | Key::Character('k') => self.top = self.top.saturating_sub(1),
            Key::Down | Key::Character('j') => self.top = self.top.saturating_add(1),
            Key::PageUp => self.top = self.top.saturating_sub(self.page.max(1)),
            Key::PageDown => self.top = self.top.saturating_add(self.page.max(1)),
            Key::Home => self.top = 0,
            Key::End => self.top = usize::MAX,
            Key::Escape | Key::Character(_) => {}
        }
        KeyAction::None
    }

    /// The lines of a screen of this size: at most `height` lines of at most `width` characters.
    pub fn lines(&mut self, width: usize, height: usize) -> Vec<Line> {
        if width < LEAST_WIDTH || height < LEAST_HEIGHT {
            let text = format!("needs {LEAST_WIDTH}x{LEAST_HEIGHT} characters");
            return vec![cut(vec![(Style::Plain, text)], width)];
        }
        let mut lines = if self.is_help_shown { help() } else { self.picture(width, height) };
        lines.truncate(height - 1);
        lines.resize(height - 1, Line::new());
        lines.push(self.footer());
        lines.into_iter().map(|line| cut(line, width)).collect()
    }

    fn picture(&mut self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = self.head();
        // The heading of the table and the last line of the screen take two lines.
        self.page = height.saturating_sub(lines.len() + 2);
        let Some(sample) = &self.sample else { return lines };
        let rows = sorted_rows(sample, self.table, self.column, self.is_reversed);
        self.top = self.top.min(rows.len().saturating_sub(self.page));
        let shown = &rows[self.top..rows.len().min(self.top + self.page)];
        lines.extend(table(shown, &rows, (self.table, self.column), Some(width)));
        lines
    }

    /// The lines above the table.
    fn head(&self) -> Vec<Line> {
        let Some(sample) = &self.sample else {
            let text = match self.failure {
                Some(_) => String::new(),
                None => "waiting for the first interval".to_owned(),
            };
            return vec![vec![(Style::Bold, "weft top".to_owned())], vec![(Style::Dim, text)]];
        };
        summary(sample)
    }

    fn footer(&self) -> Line {
        if let Some((why, since)) = &self.failure {
            let text = format!("no data for {} s, retrying: {}", since.as_secs(), printable(why));
            return vec![(Style::Bad, text)];
        }
        let mut line = Line::new();
        if self.is_paused {
            line.push((Style::Warning, "paused  ".to_owned()));
        }
        let order = if self.is_reversed == self.column.is_text() { "down" } else { "up" };
        let seconds = self.interval.as_secs_f64();
        let text = format!(
            "every {seconds} s  sorted by {} ({order})  q quit  s sort  r reverse  p pause  \
             t tunnels  ? help",
            self.column.heading(self.table)
        );
        line.push((Style::Dim, text));
        line
    }
}

/// The rows of a table in order. Numbers are sorted in descending order, texts in ascending order.
fn sorted_rows(sample: &Sample, table: Table, column: Column, is_reversed: bool) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = match table {
        Table::Ports => sample.ports.iter().map(Row::of_port).collect(),
        Table::Tunnels => sample.tunnels.iter().map(Row::of_tunnel).collect(),
    };
    rows.sort_by(|a, b| {
        let order = a.compare(b, column);
        let order = if column.is_text() == is_reversed { order.reverse() } else { order };
        order.then_with(|| a.name.cmp(b.name))
    });
    rows
}

/// The columns that fit, with their widths.
fn columns(
    rows: &[Row<'_>],
    table: Table,
    sorted: Column,
    width: Option<usize>,
) -> Vec<(Column, usize)> {
    let width_of = |column: Column| {
        let cells = rows.iter().map(|row| row.text(column).chars().count()).max().unwrap_or(0);
        let cells = if column.is_text() { cells.min(MAX_NAME_WIDTH) } else { cells.max(5) };
        cells.max(column.heading(table).len())
    };
    let mut chosen: Vec<(Column, usize)> = Vec::new();
    let mut room = width.unwrap_or(usize::MAX);
    // The column that the table is sorted by is always shown.
    let first = [Column::Name, sorted];
    let order = first.into_iter().chain(Column::BY_IMPORTANCE);
    for column in order {
        if chosen.iter().any(|(known, _)| *known == column) {
            continue;
        }
        let mut column_width = width_of(column);
        if width.is_some() && column == Column::State {
            // A state with a long reason is cut, so that it does not displace other columns.
            column_width = column_width.min(STATE_WIDTH);
        }
        if width.is_some() && column == Column::Name {
            column_width = column_width.min(NAME_WIDTH.max(room / 3)).min(room);
        }
        let gap = if chosen.is_empty() { 0 } else { 2 };
        if column_width + gap > room {
            break;
        }
        room -= column_width + gap;
        chosen.push((column, column_width));
    }
    chosen.sort_by_key(|(column, _)| Column::ALL.iter().position(|known| known == column));
    chosen
}

/// The heading and rows of a table. The widths are those of `all` rows, so that they do not change
/// when the table is scrolled.
fn table(
    shown: &[Row<'_>],
    all: &[Row<'_>],
    (kind, sorted): (Table, Column),
    width: Option<usize>,
) -> Vec<Line> {
    let columns = columns(all, kind, sorted, width);
    let aligned = |column: Column, text: &str, width: usize| {
        let text: String = text.chars().take(width).collect();
        if column.is_text() { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let used: usize = columns.iter().map(|(_, width)| width + 2).sum();
    let mut heading = Line::new();
    for (number, &(column, width)) in columns.iter().enumerate() {
        let style = if column == sorted { Style::Sorted } else { Style::Reverse };
        let gap = if number == 0 { "" } else { "  " };
        heading.push((Style::Reverse, gap.to_owned()));
        heading.push((style, aligned(column, column.heading(kind), width)));
    }
    if let Some(width) = width {
        let reasons = if kind == Table::Ports { "  DROP REASONS" } else { "" };
        let room = (width + 2).saturating_sub(used);
        let reasons: String =
            if room > reasons.len() + 6 { reasons.to_owned() } else { String::new() };
        heading.push((Style::Reverse, format!("{reasons:<room$}")));
    } else if kind == Table::Ports {
        heading.push((Style::Reverse, "  DROP REASONS".to_owned()));
    }
    let mut lines = vec![heading];
    for row in shown {
        let mut line = Line::new();
        for (number, &(column, width)) in columns.iter().enumerate() {
            let style = match column {
                Column::State if row.is_up() => Style::Good,
                Column::State | Column::Name if !row.is_up() => Style::Bad,
                Column::Drops if row.table == Table::Ports && row.last > 0.0 => Style::Warning,
                _ => Style::Plain,
            };
            let gap = if number == 0 { "" } else { "  " };
            line.push((style, gap.to_owned() + &aligned(column, &row.text(column), width)));
        }
        let reasons =
            row.reasons.iter().map(|(reason, rate)| format!("{reason} {}", scaled(*rate)));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        if !reasons.is_empty() {
            line.push((Style::Warning, format!("  {reasons}")));
        }
        lines.push(line);
    }
    lines
}

/// The lines about the whole switch.
fn summary(sample: &Sample) -> Vec<Line> {
    let up = Duration::from_secs(sample.uptime_s);
    let plain = |text: String| (Style::Plain, text);
    let or_unknown = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{value:.1}{unit}"),
        None => "-".to_owned(),
    };
    let mut drops = plain(format!("drops {}/s", scaled(sample.drops)));
    if sample.drops > 0.0 {
        drops.0 = Style::Warning;
    }
    let down = sample.ports.iter().filter(|port| port.state != "up").count();
    let mut ports = plain(format!("  ports {}", sample.ports.len().saturating_sub(1)));
    if down > 0 {
        ports.1 += &format!(", {down} not up");
        ports.0 = Style::Bad;
    }
    vec![
        vec![
            (Style::Bold, format!("weft top  host {}", printable(&sample.host))),
            plain(format!(
                "  {} datapath  pid {}  up {}  cpu {}",
                printable(&sample.datapath),
                sample.pid,
                duration(up),
                or_unknown(sample.cpu_percent, " %")
            )),
        ],
        vec![plain(format!(
            "megaflows {}  masks {}  lookups {}/s  hits {}  connections {} of {}",
            scaled_count(sample.megaflows),
            sample.masks,
            scaled(sample.lookups),
            or_unknown(sample.hit_percent, " %"),
            scaled_count(sample.connections.into()),
            scaled_count(sample.connection_limit.into())
        ))],
        vec![
            drops,
            ports,
            plain(format!(
                "  upcalls {}/s  waiting {}  mean wait {}",
                scaled(sample.upcalls),
                sample.upcalls_waiting,
                or_unknown(sample.upcall_wait_us, " us")
            )),
        ],
        Line::new(),
    ]
}

/// `3d 4h`, `5h 6m`, `7m 8s`.
fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}m {}s", seconds % 60),
        (0, hours) => format!("{hours}h {minutes}m"),
        (days, hours) => format!("{days}d {hours}h"),
    }
}

fn help() -> Vec<Line> {
    let text = "\
weft top: keys

  q, Ctrl-C       quit
  s, Right        sort by the next column
  Left            sort by the column before
  r               reverse the order
  p, space        pause: ask the daemon for nothing
  t               ports or end points of tunnels
  Up, Down        scroll by a line; also j, k
  PgUp, PgDn      scroll by a page
  Home, End       to the first or last line
  Ctrl-Z          stop; fg continues

RX is traffic from the guest, TX to it. At the uplink, it is
traffic from and to other hosts, without outer headers.
Lookups and hits are those of the user datapath.

Any key goes back.";
    text.lines().map(|line| vec![(Style::Plain, line.to_owned())]).collect()
}

/// A sample as text without styles, with no limit on the width.
pub fn text(sample: &Sample, column: Column) -> String {
    let rows = sorted_rows(sample, Table::Ports, column, false);
    let mut lines = summary(sample);
    lines.extend(table(&rows, &rows, (Table::Ports, column), None));
    let tunnels = sorted_rows(sample, Table::Tunnels, column, false);
    if !tunnels.is_empty() {
        lines.push(Line::new());
        lines.extend(table(&tunnels, &tunnels, (Table::Tunnels, column), None));
    }
    let mut out = String::new();
    for line in lines {
        let text: String = line.into_iter().map(|(_, text)| text).collect();
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

/// A line cut to a width.
fn cut(line: Line, width: usize) -> Line {
    let mut room = width;
    let mut kept = Line::new();
    for (style, text) in line {
        let text: String = text.chars().take(room).collect();
        room -= text.chars().count();
        if !text.is_empty() {
            kept.push((style, text));
        }
    }
    kept
}

/// A name with control characters replaced, because they could move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        let port = |(name, state, bits, drops): (&str, &str, f64, f64)| PortSample {
            name: name.to_owned(),
            logical_switch: "blue".to_owned(),
            state: state.to_owned(),
            traffic: Traffic {
                rx_packets: bits / 1e4,
                rx_bits: bits,
                tx_packets: 1.0,
                tx_bits: 9e3,
            },
            drops,
            drop_reasons: if drops > 0.0 { vec![("acl_drop".to_owned(), drops)] } else { vec![] },
        };
        let ports = [
            ("vm1", "up", 2e6, 0.0),
            ("vm2", "up", 7e9, 12.0),
            ("vm3", "no device tap3", 0.0, 0.0),
            ("uplink eth0", "up", 5e6, 0.0),
        ];
        let tunnel = TunnelSample {
            tunnel: "geneve".to_owned(),
            remote: "192.0.2.2".to_owned(),
            neighbour: "kernel".to_owned(),
            path_mtu: 1450,
            traffic: Traffic::default(),
        };
        Sample {
            host: "h1".to_owned(),
            datapath: "kernel".to_owned(),
            pid: 42,
            uptime_s: 3700,
            seconds: 1.0,
            cpu_percent: Some(12.34),
            megaflows: 1234,
            masks: 5,
            lookups: 10.0,
            hit_percent: Some(99.5),
            upcalls: 3.0,
            upcall_wait_us: None,
            upcalls_waiting: 0,
            connections: 7,
            connection_limit: 200_000,
            drops: 12.0,
            ports: ports.map(port).into(),
            tunnels: vec![tunnel],
        }
    }

    fn view() -> View {
        View { sample: Some(sample()), interval: Duration::from_secs(1), ..View::default() }
    }

    fn texts(view: &mut View, width: usize, height: usize) -> Vec<String> {
        let lines = view.lines(width, height);
        let join = |line: Line| line.into_iter().map(|(_, text)| text).collect::<String>();
        lines.into_iter().map(|line| join(line).trim_end().to_owned()).collect()
    }

    fn names(view: &mut View) -> Vec<String> {
        let lines = texts(view, 100, 20);
        let rows = &lines[HEAD_LINES + 1..lines.len() - 1];
        rows.iter().filter_map(|row| row.split_whitespace().next().map(str::to_owned)).collect()
    }

    #[test]
    fn screen_of_120_columns_has_all() {
        let mut view = view();
        let lines = texts(&mut view, 120, 12);
        let expected = "\
weft top  host h1  kernel datapath  pid 42  up 1h 1m  cpu 12.3 %
megaflows 1.23k  masks 5  lookups 10/s  hits 99.5 %  connections 7 of 200k
drops 12/s  ports 3, 1 not up  upcalls 3/s  waiting 0  mean wait -

PORT         SWITCH  STATE           RX PKT/S  RX BIT/S  TX PKT/S  TX BIT/S  DROPS/S  DROP REASONS
vm2          blue    up                  700k     7.00G         1     9.00k       12  acl_drop 12
uplink eth0  blue    up                   500     5.00M         1     9.00k        0
vm1          blue    up                   200     2.00M         1     9.00k        0
vm3          blue    no device tap3         0         0         1     9.00k        0


every 1 s  sorted by RX BIT/S (down)  q quit  s sort  r reverse  p pause  t tunnels  ? help";
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn narrow_screens_keep_the_most_important_columns() {
        let heading = |width| texts(&mut view(), width, 12).remove(HEAD_LINES);
        assert_eq!(
            heading(80),
            "PORT         STATE           RX PKT/S  RX BIT/S  TX PKT/S  TX BIT/S  DROPS/S"
        );
        assert_eq!(heading(60), "PORT         RX PKT/S  RX BIT/S  TX PKT/S  TX BIT/S  DROPS/S");
        assert_eq!(heading(40), "PORT         RX BIT/S  TX BIT/S  DROPS/S");
        assert_eq!(heading(30), "PORT         RX BIT/S");
        // The column that the table is sorted by is always shown.
        let mut by_switch = view();
        by_switch.column = Column::Switch;
        let heading = texts(&mut by_switch, 30, 12).remove(HEAD_LINES);
        assert_eq!(heading, "PORT         SWITCH  RX BIT/S");
    }

    #[test]
    fn lines_fit_every_size() {
        let mut view = view();
        let long = PortSample { name: "x".repeat(200), ..PortSample::default() };
        let sample = view.sample.as_mut().unwrap();
        sample.ports.extend(std::iter::repeat_n(long, 500));
        for keys in ["", "?", "t", "p", "ss"] {
            for width in [1, 20, 30, 33, 57, 80, 200, 1000] {
                for height in [1, 5, 7, 8, 24, 100, 1000] {
                    let mut view = view.clone();
                    for key in keys.chars() {
                        assert_eq!(view.press(Key::Character(key)), KeyAction::None);
                    }
                    let lines = view.lines(width, height);
                    assert!(lines.len() <= height, "{width}x{height}");
                    for line in lines {
                        let length: usize = line.iter().map(|(_, text)| text.chars().count()).sum();
                        assert!(length <= width, "{width}x{height}: {line:?}");
                    }
                }
            }
        }
        assert_eq!(texts(&mut view, 29, 24), ["needs 30x7 characters"]);
    }

    #[test]
    fn keys_sort_scroll_and_quit() {
        let mut view = view();
        assert_eq!(names(&mut view), ["vm2", "uplink", "vm1", "vm3"]);
        view.press(Key::Character('r'));
        assert_eq!(names(&mut view), ["vm3", "vm1", "uplink", "vm2"]);
        view.press(Key::Character('r'));
        (0..4).for_each(|_| _ = view.press(Key::Right));
        assert_eq!(view.column, Column::Name);
        assert_eq!(names(&mut view), ["uplink", "vm1", "vm2", "vm3"]);
        view.press(Key::Left);
        assert_eq!((view.column, names(&mut view)[0].as_str()), (Column::Drops, "vm2"));

        // Two of the four rows fit.
        view.press(Key::End);
        let rows =
            |view: &mut View| texts(view, 80, HEAD_LINES + 4)[HEAD_LINES + 1..][..2].join("|");
        let last = rows(&mut view);
        assert!(last.starts_with("vm1") && last.contains("|vm3"), "{last}");
        view.press(Key::Down);
        assert_eq!(rows(&mut view), last, "it does not scroll beyond the end");
        view.press(Key::Up);
        assert!(rows(&mut view).starts_with("uplink"));
        view.press(Key::PageUp);
        assert!(rows(&mut view).starts_with("vm2"));

        view.press(Key::Character('?'));
        assert!(texts(&mut view, 80, 24).join("\n").contains("weft top: keys"));
        view.press(Key::Escape);
        view.press(Key::Character('t'));
        let lines = texts(&mut view, 80, 24);
        assert!(lines[HEAD_LINES].starts_with("REMOTE     TUNNEL  NEIGHBOUR"), "{lines:?}");
        assert!(lines[HEAD_LINES + 1].ends_with("1450"), "{lines:?}");
        view.press(Key::Character('p'));
        assert!(view.is_paused && texts(&mut view, 80, 24)[23].starts_with("paused"));
        assert_eq!(view.press(Key::Suspend), KeyAction::Suspend);
        assert_eq!(view.press(Key::Interrupt), KeyAction::Quit);
        view.press(Key::Character('?'));
        assert_eq!(view.press(Key::Character('q')), KeyAction::Quit);
    }

    #[test]
    fn trouble_is_shown_and_the_last_table_stays() {
        let mut view = view();
        view.failure = Some(("cannot reach\x1b[2J".to_owned(), Duration::from_secs(3)));
        let lines = texts(&mut view, 80, 12);
        assert_eq!(lines[11], "no data for 3 s, retrying: cannot reach?[2J");
        assert!(lines[HEAD_LINES + 1].starts_with("vm2"), "{lines:?}");
        view.sample = None;
        assert_eq!(texts(&mut view, 80, 12)[0], "weft top");
    }

    #[test]
    fn text_has_everything_without_cuts() {
        let text = text(&sample(), Column::Name);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[4].ends_with("DROPS/S  DROP REASONS"), "{text}");
        assert!(lines[7].starts_with("vm2") && lines[7].ends_with("12  acl_drop 12"), "{text}");
        assert!(lines[10].starts_with("REMOTE") && lines[11].starts_with("192.0.2.2"), "{text}");
    }

    #[test]
    fn durations_have_two_units() {
        let texts = [59, 3599, 3600, 90_061].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(texts, ["0m 59s", "59m 59s", "1h 0m", "1d 1h"]);
    }
}
