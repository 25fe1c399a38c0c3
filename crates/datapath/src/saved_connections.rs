//! [`ConnectionFile`]: the connections of a datapath in a file, so that the next daemon continues
//! them.
//!
//! The file is mapped into memory, so nothing is lost when the daemon is killed. It holds a
//! [`Record`] for each connection that has seen a reply, and the names of zones and ports, because
//! the next daemon may number them differently.
//!
//! # Layout
//! Words of 64 bits in the byte order of the host:
//!
//! | words | contents |
//! |---|---|
//! | 8 | [`MAGIC`], [`VERSION`], number of records, last heartbeat, length of each [`Area`], boot |
//! | 32 for each zone | checksum, length in bytes, name |
//! | 32 for each port | the same |
//! | 16 for each slot of the table | [`Record`] |
//!
//! A heartbeat is the time since boot in milliseconds, which the daemon writes every second or so.
//! The last word of the header identifies the boot of the host. The first three words are the same
//! in all versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conntrack::{Config, Record, RestoreError, Seed, Store, Table, checksum};
use flow::PortNo;
use netdev::boot_clock;
use netdev::mapped_file::{self, MappedFile};

/// `weftconn`
const MAGIC: u64 = u64::from_be_bytes(*b"weftconn");
/// The version of the layout, and of the records in it.
const VERSION: u64 = 1 << 32 | Record::VERSION;
const WORD: usize = size_of::<u64>();

/// Indices of words in the header.
const VERSION_AT: usize = 1;
const RECORDS_AT: usize = 2;
const HEARTBEAT_AT: usize = 3;
const LENGTHS_AT: usize = 4;
const BOOT_AT: usize = 7;
const HEADER: usize = 8;

/// Entries for zones and for ports. Ports with higher numbers are not saved.
const NAMES: usize = 1 << 16;
const NAME_WORDS: usize = 32;
/// The longest name in bytes. Longer ones are not saved.
const NAME_BYTES: usize = (NAME_WORDS - 2) * WORD;

/// A part of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Area {
    /// The names of zones, by their numbers.
    Zones,
    /// The names of ports, by their numbers.
    Ports,
    /// The connections, by their slots in the table.
    Connections,
}

impl Area {
    const fn start(self) -> usize {
        match self {
            Self::Zones => HEADER,
            Self::Ports => Self::Zones.start() + NAMES * NAME_WORDS,
            Self::Connections => Self::Ports.start() + NAMES * NAME_WORDS,
        }
    }

    const fn entry_words(self) -> usize {
        match self {
            Self::Zones | Self::Ports => NAME_WORDS,
            Self::Connections => Record::WORDS,
        }
    }

    const fn entry(self, number: usize) -> usize {
        self.start() + number * self.entry_words()
    }

    /// Index of the header word that says how many entries may be in use.
    const fn length_index(self) -> usize {
        LENGTHS_AT + self as usize
    }
}

/// What an earlier daemon has saved.
#[derive(Default, Debug)]
pub struct SavedState {
    /// The names of zones.
    pub zones: BTreeMap<u16, String>,
    /// The names of ports.
    pub ports: BTreeMap<u32, String>,
    /// The connections.
    pub records: Vec<Record>,
    /// Connections that cannot be read: another version has saved them, or the daemon was killed
    /// while it wrote one.
    pub unreadable: u64,
    /// The last heartbeat of the earlier daemon: a time since boot.
    pub last_heartbeat: Option<Duration>,
}

impl SavedState {
    /// The time since the earlier daemon ran.
    pub fn downtime(&self) -> Duration {
        self.last_heartbeat.map_or(Duration::ZERO, |last| boot_clock::now().saturating_sub(last))
    }

    /// Reads the file of an earlier daemon; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or another user could have written it.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = match mapped_file::open_own(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = read_words(&file, 0, HEADER)?;
        if header.first() != Some(&MAGIC) {
            return Ok(None);
        }
        let word = |at: usize| header.get(at).copied().unwrap_or_default();
        if word(BOOT_AT) != boot_clock::boot() {
            return Ok(None);
        }
        if word(VERSION_AT) != VERSION {
            return Ok(Some(Self { unreadable: word(RECORDS_AT), ..Self::default() }));
        }
        let entries = |area: Area| {
            let most = if area == Area::Connections { u32::MAX as usize } else { NAMES };
            let count = word(area.length_index()).min(most as u64) as usize;
            read_words(&file, area.start(), count * area.entry_words())
        };
        let names = |area: Area| -> io::Result<Vec<(usize, String)>> {
            let words = entries(area)?;
            let entries = words.chunks_exact(NAME_WORDS).enumerate();
            Ok(entries.filter_map(|(number, entry)| Some((number, name_of(entry)?))).collect())
        };
        let mut earlier = Self::default();
        let (zones, ports) = (names(Area::Zones)?, names(Area::Ports)?);
        earlier.zones.extend(zones.into_iter().map(|(number, name)| (number as u16, name)));
        earlier.ports.extend(ports.into_iter().map(|(number, name)| (number as u32, name)));
        for words in entries(Area::Connections)?.as_chunks().0 {
            match Record::from_words(*words) {
                Some(record) => earlier.records.push(record),
                None if words[Record::WORDS - 1] != 0 => earlier.unreadable += 1,
                None => {}
            }
        }
        earlier.last_heartbeat = Some(Duration::from_millis(word(HEARTBEAT_AT)));
        Ok(Some(earlier))
    }
}

/// Reads at most `count` words of a file.
fn read_words(file: &File, from: usize, count: usize) -> io::Result<Vec<u64>> {
    let len = file.metadata()?.len().saturating_sub((from * WORD) as u64);
    let mut bytes = vec![0; (count * WORD).min(len as usize)];
    file.read_exact_at(&mut bytes, (from * WORD) as u64)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

fn name_of(entry: &[u64]) -> Option<String> {
    let (&[sum, len], words) = entry.split_first_chunk()?;
    if sum != checksum(&entry[1..]) {
        return None;
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    String::from_utf8(bytes.get(..usize::try_from(len).ok()?)?.to_vec()).ok()
}

fn words_of(name: &str) -> Option<[u64; NAME_WORDS]> {
    let mut bytes = [0; NAME_BYTES];
    bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    let mut words = [0; NAME_WORDS];
    words[1] = name.len() as u64;
    for (word, bytes) in words[2..].iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words[0] = checksum(&words[1..]);
    Some(words)
}

/// The file in which a running daemon saves its connections.
#[derive(Clone, Debug)]
pub struct ConnectionFile(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    file: MappedFile,
    /// The numbers of zones and ports that have names in the file.
    named: [BTreeSet<usize>; 2],
    records: u64,
    failures: u64,
}

impl ConnectionFile {
    /// Creates a file without connections at `path`, for a table of at most `connections`. Until
    /// the first [`ConnectionFile::heartbeat`], the heartbeat in the file is `last_heartbeat`.
    ///
    /// # Errors
    /// The file exists, or cannot be created.
    pub fn create(
        path: &Path,
        connections: u32,
        last_heartbeat: Option<Duration>,
    ) -> io::Result<Self> {
        let mut file = MappedFile::create(path, Area::Connections.entry(connections as usize))?;
        let heartbeat = last_heartbeat.map_or_else(heartbeat, |last| last.as_millis() as u64);
        file.store(0, &[MAGIC, VERSION, 0, heartbeat, 0, 0, 0, boot_clock::boot()])?;
        Ok(Self(Arc::new(Mutex::new(Inner {
            file,
            named: Default::default(),
            records: 0,
            failures: 0,
        }))))
    }

    /// Writes the current time as the last heartbeat.
    pub fn heartbeat(&self) {
        // Cannot fail: space for the header is reserved.
        let _ = self.lock().file.store(HEARTBEAT_AT, &[heartbeat()]);
    }

    /// Replaces all names of an area. Names that are too long are left out.
    pub fn set_names(&self, area: Area, names: impl IntoIterator<Item = (u32, String)>) {
        let names: BTreeMap<usize, _> = names
            .into_iter()
            .filter_map(|(number, name)| Some((number as usize, words_of(&name)?)))
            .filter(|(number, _)| *number < NAMES)
            .collect();
        let mut inner = self.lock();
        let before = inner.file.load(area.length_index()) as usize;
        let after = names.keys().next_back().map_or(0, |last| last + 1);
        let at = usize::from(area == Area::Ports);
        let mut numbers = std::mem::replace(&mut inner.named[at], names.keys().copied().collect());
        numbers.extend(names.keys());
        for number in numbers {
            let new = names.get(&number).map_or([0; NAME_WORDS], |words| *words);
            let at = area.entry(number);
            if (0..NAME_WORDS).any(|word| inner.file.load(at + word) != new[word]) {
                inner.store(at, &new);
            }
        }
        inner.store(area.length_index(), &[before.max(after) as u64]);
    }

    /// The number of records that could not be written, because the file system was full.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is harmless: no code panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file, and the table of the connections that were restored from another one.
#[derive(Debug)]
pub struct Restored {
    pub(crate) file: Option<ConnectionFile>,
    /// `None` when there are none: a table takes memory.
    pub(crate) table: Option<Table>,
}

impl Restored {
    /// Restores connections, and saves them in `file` if there is one. `earlier` has the record and
    /// the opening port of each. `downtime` is the time since the earlier daemon ran. Also returns
    /// how many were not restored, by reason.
    pub fn new(
        file: Option<ConnectionFile>,
        config: &Config,
        earlier: impl ExactSizeIterator<Item = (Record, PortNo)>,
        downtime: Duration,
    ) -> (Self, BTreeMap<RestoreError, u64>) {
        let mut lost = BTreeMap::new();
        if earlier.len() == 0 {
            return (Self { file, table: None }, lost);
        }
        // A table's clock may start at any time. A tracker's clock starts at 0, and so does this
        // one.
        let mut table = Table::new(config.clone(), Seed::random(), 0);
        if let Some(file) = &file {
            table.save_in(Box::new(file.clone()));
        }
        for (record, opener) in earlier {
            if let Err(why) = table.restore(0, &record, downtime.as_millis() as u64, opener) {
                *lost.entry(why).or_default() += 1;
            }
        }
        (Self { file, table: Some(table) }, lost)
    }

    /// The number of connections.
    pub fn len(&self) -> u32 {
        self.table.as_ref().map_or(0, Table::len)
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn heartbeat() -> u64 {
    boot_clock::now().as_millis() as u64
}

impl Inner {
    fn store(&mut self, at: usize, words: &[u64]) -> bool {
        let stored = self.file.store(at, words).is_ok();
        self.failures += u64::from(!stored);
        stored
    }

    fn count(&mut self, records: u64) {
        self.records = records;
        self.store(RECORDS_AT, &[records]);
    }
}

impl Store for ConnectionFile {
    fn write(&mut self, place: u32, record: &Record) {
        let mut inner = self.lock();
        let at = Area::Connections.entry(place as usize);
        let is_new = inner.file.load(at + Record::WORDS - 1) == 0;
        if inner.store(at, record.words()) && is_new {
            let records = inner.records + 1;
            inner.count(records);
            let length = inner.file.load(Area::Connections.length_index());
            if length <= place.into() {
                inner.store(Area::Connections.length_index(), &[u64::from(place) + 1]);
            }
        }
    }

    fn clear(&mut self, place: u32) {
        let mut inner = self.lock();
        let checksum = Area::Connections.entry(place as usize) + Record::WORDS - 1;
        if inner.file.load(checksum) != 0 {
            inner.store(checksum, &[0]);
            let records = inner.records.saturating_sub(1);
            inner.count(records);
        }
    }
}

#[cfg(test)]
mod tests;
