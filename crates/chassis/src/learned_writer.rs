//! [`LearnedWriter`]: writes addresses that this host has learned from packets to the tables
//! MAC_Binding and FDB, from which all hosts read them.
//!
//! An event waits until the database has its value, or for [`GIVE_UP`]. A packet causes an event
//! only if the known value is another one, or there is none. So two hosts that learn the same value
//! agree at once, and the later of two different events wins.

use crate::tables::{DatapathBinding, Fdb, MacBinding, PortBinding, StaticMacBinding, Text, index};
use crate::writes::{UnixMs, row_is};
use flow::{DatapathKey, PortKey};
use ovsdb::{Datum, Replica, RowValues, Table, Transaction, Uuid};
use pipeline::{FdbKey, FdbPort, LearnEvent, MacBindingKey, StateQuery};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use wire::MacAddr;

/// The least time between two transactions.
const PAUSE: Duration = Duration::from_millis(100);
/// The most rows that one transaction changes.
const MAX_ROWS: usize = 256;
/// How long an event waits for a database that does not accept it. Later packets cause it again,
/// and meanwhile the switch uses the value that it has learned.
const GIVE_UP: Duration = Duration::from_secs(5);
/// The least time between two changes of the same row: two stations may claim one address
/// alternately.
const ROW_PAUSE: Duration = Duration::from_secs(1);
/// The most rows of each table for one logical port. The limit is needed because guests control
/// which addresses are learned.
const MAX_ROWS_OF_PORT: usize = 8192;
/// The most rows whose last change is remembered.
const MAX_REMEMBERED: usize = 4096;

/// Writes learn events into the southbound database.
#[derive(Debug, Default)]
pub struct LearnedWriter {
    /// The latest event of each FDB entry and MAC binding, and since when it waits.
    waiting: BTreeMap<StateQuery, (LearnEvent, Instant)>,
    /// When rows were written last.
    written: HashMap<StateQuery, Instant>,
    /// The time of the last transaction.
    last: Option<Instant>,
}

impl LearnedWriter {
    /// Adds events of the switch.
    pub fn add(&mut self, events: impl IntoIterator<Item = LearnEvent>, now: Instant) {
        self.waiting.extend(events.into_iter().map(|event| (event.query(), (event, now))));
    }

    /// The next transaction; `None` if nothing waits, or nothing may be written yet. The second
    /// value is the latest time of the next call.
    pub fn next(
        &mut self,
        replica: &Replica,
        now: Instant,
        unix_ms: UnixMs,
    ) -> (Option<Transaction>, Option<Instant>) {
        self.waiting.retain(|_, (_, since)| now.duration_since(*since) < GIVE_UP);
        if self.waiting.is_empty() {
            return (None, None);
        }
        let due = self.last.map_or(now, |last| last + PAUSE);
        if due > now {
            return (None, Some(due));
        }
        self.written.retain(|_, last| now.duration_since(*last) < ROW_PAUSE);
        let mut transaction = Transaction::new();
        let mut done = Vec::new();
        for (query, (event, _)) in &self.waiting {
            if transaction.len() == MAX_ROWS {
                break;
            }
            if self.written.contains_key(query) || self.written.len() >= MAX_REMEMBERED {
                continue;
            }
            match row_write(replica, event, unix_ms) {
                Some(write) => {
                    transaction = write.add_to(transaction);
                    self.written.insert(*query, now);
                }
                None => done.push(*query),
            }
        }
        for query in done {
            self.waiting.remove(&query);
        }
        if !transaction.is_empty() {
            self.last = Some(now);
        }
        let again = (!self.waiting.is_empty()).then(|| now + PAUSE);
        ((!transaction.is_empty()).then_some(transaction), again)
    }
}

/// A row to write.
struct RowWrite {
    table: &'static str,
    /// The row to change; `None` for a new one.
    old: Option<Uuid>,
    values: RowValues,
}

impl RowWrite {
    fn add_to(self, transaction: Transaction) -> Transaction {
        match self.old {
            Some(old) => transaction.update(self.table, &row_is(old), self.values),
            None => transaction.insert(self.table, self.values),
        }
    }
}

/// The row that an event changes. `None` when the row already has the value, or cannot or must not
/// be written.
fn row_write(replica: &Replica, event: &LearnEvent, unix_ms: UnixMs) -> Option<RowWrite> {
    let write = match *event {
        LearnEvent::MacBinding(key, mac) => binding(replica, key, mac),
        LearnEvent::Fdb(key, FdbPort::Logical(port)) => station(replica, key, port),
        // An entry with a port of the datapath is from a bridge, not from an OVN switch.
        LearnEvent::Fdb(_, FdbPort::Port(_)) => None,
        LearnEvent::Affinity(..) | LearnEvent::NextHop(..) => None,
    }?;
    let layout = replica.table(write.table)?.layout()?;
    let has_time = layout.columns().iter().any(|it| &*it.name == "timestamp" && it.is_present);
    let values = if has_time { write.values.set("timestamp", unix_ms) } else { write.values };
    Some(RowWrite { values, ..write })
}

fn binding(replica: &Replica, key: MacBindingKey, mac: MacAddr) -> Option<RowWrite> {
    let (datapath, port) = port_with_key(replica, key.datapath, key.port)?;
    let ip: Text = key.ip.to_string().into();
    let port = port.logical_port;
    let address = [Datum::from(port.clone()), Datum::from(ip.clone())];
    let is_static = find(replica, StaticMacBinding::NAME, index::ADDRESS, &address)
        .and_then(|row| replica.get::<StaticMacBinding>(row))
        .is_some_and(|row| row.override_dynamic_mac);
    if is_static {
        return None;
    }
    let table = MacBinding::NAME;
    let values = RowValues::new().set("mac", mac.to_string());
    if let Some(old) = find(replica, table, index::ADDRESS, &address) {
        let is_same = replica.get::<MacBinding>(old)?.mac.parse() == Ok(mac);
        return (!is_same).then_some(RowWrite { table, old: Some(old), values });
    }
    if !has_room(replica, table, index::NAME, &[Datum::from(port.clone())]) {
        return None;
    }
    let values = values.set("logical_port", port).set("ip", ip).set("datapath", datapath);
    Some(RowWrite { table, old: None, values })
}

fn station(replica: &Replica, key: FdbKey, port: PortKey) -> Option<RowWrite> {
    // No host would use or delete the row of a port that does not exist.
    port_with_key(replica, key.datapath, port)?;
    let (dp_key, port_key) = (i64::from(key.datapath.0), i64::from(port.value()));
    let mac: Text = key.mac.to_string().into();
    let table = Fdb::NAME;
    let values = RowValues::new().set("port_key", port_key);
    let place = [Datum::from(mac.clone()), Datum::from(dp_key)];
    if let Some(old) = find(replica, table, index::KEY, &place) {
        let is_same = replica.get::<Fdb>(old)?.port_key == port_key;
        return (!is_same).then_some(RowWrite { table, old: Some(old), values });
    }
    let of_port = [Datum::from(dp_key), Datum::from(port_key)];
    if !has_room(replica, table, index::PORTS, &of_port) {
        return None;
    }
    Some(RowWrite { table, old: None, values: values.set("mac", mac).set("dp_key", dp_key) })
}

/// The row of the datapath with this key, and its port with that key.
fn port_with_key(
    replica: &Replica,
    datapath: DatapathKey,
    port: PortKey,
) -> Option<(Uuid, PortBinding)> {
    let key = [Datum::from(i64::from(datapath.0))];
    let datapath = find(replica, DatapathBinding::NAME, index::KEY, &key)?;
    let key = [Datum::from(datapath), Datum::from(i64::from(port.value()))];
    let row = find(replica, PortBinding::NAME, index::KEY, &key)?;
    Some((datapath, replica.get::<PortBinding>(row)?))
}

/// The first row with this key in an index.
fn find(replica: &Replica, table: &str, index: &str, key: &[Datum]) -> Option<Uuid> {
    replica.table(table)?.index(index)?.find(key).map(|row| row.uuid()).next()
}

/// True if a port, by its key in an index, has fewer rows than it may have.
fn has_room(replica: &Replica, table: &str, index: &str, key: &[Datum]) -> bool {
    let rows = replica.table(table).and_then(|table| table.index(index));
    rows.is_some_and(|rows| rows.find(key).count() < MAX_ROWS_OF_PORT)
}
