use super::*;
use conntrack::{Commit, Headers, Nat, Zone};
use packet::PacketBuf;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

/// A path in a directory that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weft-saved-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("h1.connections")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A datagram from port `number` to port 53, or back.
fn datagram(number: u16, is_reply: bool) -> Headers {
    let [near, far] = [[10, 0, 0, 1], [10, 0, 0, 2]];
    let (ends, ports) =
        if is_reply { ([far, near], [53, number]) } else { ([near, far], [number, 53]) };
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(ends.concat());
    let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend(ports.map(u16::to_be_bytes).concat());
    frame.extend([0, 8, 0, 0]);
    Headers::parse(&PacketBuf::from_bytes(&frame)).unwrap()
}

/// Opens connections, and answers those with even numbers.
fn fill(table: &mut Table, count: u16) {
    for number in 0..count {
        let first = datagram(number, false);
        let tracked = table.track(0, Zone(5), &first, Nat::Apply);
        table.commit(0, &tracked, &first, PortNo(4), &Commit::default()).unwrap();
        if number % 2 == 0 {
            table.track(0, Zone(5), &datagram(number, true), Nat::Apply);
        }
    }
}

fn names(numbers: impl IntoIterator<Item = u32>) -> Vec<(u32, String)> {
    numbers.into_iter().map(|number| (number, format!("[\"port\", \"{number}\"]"))).collect()
}

/// A copy of the file: a daemon that runs has locked the file itself.
fn copy(folder: &Folder) -> PathBuf {
    let copy = folder.0.join("copy");
    fs::copy(folder.file(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    copy
}

/// A table whose connections are saved in a new file.
fn saved(folder: &Folder) -> (Table, ConnectionFile) {
    let file = ConnectionFile::create(&folder.file(), 10_000, None).unwrap();
    let mut table = Table::new(Config::default(), Seed::random(), 0);
    table.save_in(Box::new(file.clone()));
    (table, file)
}

#[test]
fn connections_and_names_are_read_when_the_daemon_has_ended() {
    let folder = Folder::new("read");
    assert!(SavedState::read(&folder.file()).unwrap().is_none());
    let (mut table, file) = saved(&folder);
    file.set_names(Area::Zones, names([5, 65_535]));
    file.set_names(Area::Ports, names([4, 5, 70_000]));
    file.set_names(Area::Ports, [(4, "x".repeat(NAME_BYTES)), (9, "x".repeat(NAME_BYTES + 1))]);
    fill(&mut table, 5000);
    let removed = table.iter().next().unwrap();
    assert!(removed.seen_reply && table.remove_connection(removed.reference));

    assert!(SavedState::read(&folder.file()).is_err(), "a daemon uses it");
    let earlier = SavedState::read(&copy(&folder)).unwrap().unwrap();
    let zones: Vec<_> = earlier.zones.keys().copied().collect();
    assert_eq!(zones, [5, 65_535]);
    assert_eq!(earlier.zones[&5], "[\"port\", \"5\"]");
    assert_eq!(
        earlier.ports.clone().into_iter().collect::<Vec<_>>(),
        [(4, "x".repeat(NAME_BYTES))]
    );
    assert_eq!((earlier.records.len(), earlier.unreadable), (2499, 0));
    assert!(earlier.downtime() < Duration::from_secs(60), "{:?}", earlier.downtime());

    // When they are restored with another file, the table has the same connections.
    let other = folder.0.join("other");
    let file = ConnectionFile::create(&other, 10_000, None).unwrap();
    let records = earlier.records.into_iter().map(|record| (record, record.opener()));
    let (restored, lost) = Restored::new(Some(file), &Config::default(), records, Duration::ZERO);
    assert_eq!((restored.len(), lost.len()), (2499, 0));
    let tuples = |table: &Table| {
        let mut all: Vec<_> = table.iter().filter(|c| c.seen_reply).map(|c| c.original).collect();
        all.sort_by_key(|tuple| tuple.ports());
        all
    };
    assert_eq!(tuples(&table), tuples(restored.table.as_ref().unwrap()));
    drop(restored);
    assert_eq!(SavedState::read(&other).unwrap().unwrap().records.len(), 2499);
}

#[test]
fn what_cannot_be_read_is_counted_when_the_file_is_damaged_or_of_another_version() {
    let folder = Folder::new("damaged");
    let (mut table, file) = saved(&folder);
    file.set_names(Area::Zones, names([5, 6]));
    fill(&mut table, 100);
    drop((table, file));
    let change = |word: usize, value: u64| {
        let file = fs::OpenOptions::new().write(true).open(folder.file()).unwrap();
        file.write_all_at(&value.to_ne_bytes(), (word * WORD) as u64).unwrap();
    };
    let read = || SavedState::read(&folder.file()).unwrap();
    // The daemon was killed while it wrote the first record and a name.
    change(Area::Connections.entry(0) + 12, 99);
    change(Area::Zones.entry(6) + 1, 9);
    let earlier = read().unwrap();
    assert_eq!((earlier.records.len(), earlier.unreadable), (49, 1));
    assert_eq!(earlier.zones.keys().copied().collect::<Vec<_>>(), [5]);
    // Lengths beyond the end.
    change(Area::Connections.length_index(), u64::MAX);
    assert_eq!(read().unwrap().records.len(), 49);
    change(VERSION_AT, VERSION + 1);
    let earlier = read().unwrap();
    assert_eq!((earlier.records.len(), earlier.unreadable), (0, 50));
    change(BOOT_AT, boot_clock::boot() ^ 1);
    assert!(read().is_none(), "the host was booted");
    change(BOOT_AT, boot_clock::boot());
    assert!(read().is_some());
    change(0, 0);
    assert!(read().is_none());
}

#[test]
fn records_are_counted_when_the_file_is_too_short_for_them() {
    let folder = Folder::new("short");
    let file = ConnectionFile::create(&folder.file(), 10, None).unwrap();
    let mut table = Table::new(Config::default(), Seed::random(), 0);
    table.save_in(Box::new(file.clone()));
    fill(&mut table, 100);
    let records = SavedState::read(&copy(&folder)).unwrap().unwrap().records.len() as u64;
    assert_eq!(records, 50 - file.failures());
    assert!(file.failures() >= 45);
}
