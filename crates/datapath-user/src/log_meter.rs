//! [`LogMeters`]: limits the rate of the log records that ACLs write about packets.
//!
//! A guest chooses how many packets match an ACL, so records without a limit would let it fill the
//! disk of the host. Two limits apply to each record:
//!
//! - Its meter: the one that the `log` action names, or else one of its own for each ACL name.
//!   OVN defines the rates of meters ([`LogMeters::set`]). Others have the default rate.
//! - The total of the datapath. It bounds the log of a host that has many ACLs. It has two parts.
//!   Each meter can have up to the default rate of the first part. Records beyond that compete for
//!   the second one. So a meter with a high rate does not suppress the records of others.
//!
//! All workers share the meters. Suppressed records are counted.

use crate::named_meter;
use crate::token_bucket::TimeBucket;
use ahash::HashMap;
use flow::{LogRecord, NamedMeter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The rate and burst of each meter that has no other, and of what other meters get before they
/// compete with each other.
const METER: LogRate = LogRate { records_per_s: 10, burst: 20 };
/// The rate and burst of all meters together: of their records up to [`METER`], and as much again
/// of those beyond it.
const TOTAL: LogRate = LogRate { records_per_s: 100, burst: 200 };
/// Idle meters are removed when there are this many. [`TOTAL`] lets far fewer of the default rate
/// be busy at once.
const MAX_METERS: usize = 1024;
/// The shortest time between two reports of suppressed records.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

struct LogRate {
    records_per_s: u32,
    burst: u32,
}

impl LogRate {
    /// The bucket without one token; `None` if it has none at `now`.
    fn take(&self, bucket: TimeBucket, now: Instant) -> Option<TimeBucket> {
        let per_token = Duration::from_secs(1) / self.records_per_s;
        bucket.take(per_token, per_token * self.burst, now)
    }
}

#[derive(Debug)]
struct LogMeter {
    buckets: MeterBuckets,
    /// Records suppressed since the last report.
    suppressed: u64,
}

/// The buckets of one meter.
#[derive(Clone, Copy, Debug)]
struct MeterBuckets {
    /// That of its own rate.
    own: TimeBucket,
    /// That of [`METER`].
    kept: TimeBucket,
}

impl MeterBuckets {
    fn full(now: Instant) -> Self {
        Self { own: TimeBucket::full(now), kept: TimeBucket::full(now) }
    }

    fn are_full(self, now: Instant) -> bool {
        self.own.is_full(now) && self.kept.is_full(now)
    }
}

/// Records that were suppressed since the last report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Suppressed {
    /// How many.
    pub(super) records: u64,
    /// The meter or ACL with the most of them.
    pub(super) most_by: String,
}

/// All meters of a datapath by name.
#[derive(Debug)]
pub(super) struct LogMeters(Mutex<MeterTable>);

#[derive(Debug)]
struct MeterTable {
    /// Those of ACLs without a meter by the name of the ACL, and the others by their own name.
    meters: [HashMap<String, LogMeter>; 2],
    /// The meters with a rate of their own.
    rates: HashMap<String, NamedMeter>,
    /// Of all meters: for records up to [`METER`], and for those beyond it.
    kept: TimeBucket,
    beyond: TimeBucket,
    /// Records suppressed since the start.
    suppressed: u64,
    /// The value of `suppressed` at the last report.
    reported: u64,
    next_report: Instant,
}

impl LogMeters {
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(MeterTable {
            meters: Default::default(),
            rates: HashMap::default(),
            kept: TimeBucket::full(now),
            beyond: TimeBucket::full(now),
            suppressed: 0,
            reported: 0,
            next_report: now,
        }))
    }

    /// Replaces the meters with a rate of their own. Those that change start with a full bucket.
    pub(super) fn set(&self, meters: &[NamedMeter]) {
        let rates: HashMap<String, NamedMeter> =
            meters.iter().map(|meter| (meter.name.clone(), meter.clone())).collect();
        let mut state = self.state();
        let MeterTable { meters: buckets, rates: before, .. } = &mut *state;
        buckets[usize::from(true)].retain(|name, _| rates.get(name) == before.get(name));
        *before = rates;
    }

    /// True if a record about a packet of `len` bytes may be written at `now`. Counts it as
    /// suppressed otherwise.
    pub(super) fn admit(&self, record: &LogRecord, len: usize, now: Instant) -> bool {
        self.state().admit(record, len, now)
    }

    /// The number of records suppressed since the start.
    pub(super) fn suppressed(&self) -> u64 {
        self.state().suppressed
    }

    /// The records suppressed since the last report, unless there are none or that was less than
    /// ten seconds ago.
    pub(super) fn report(&self, now: Instant) -> Option<Suppressed> {
        let mut state = self.state();
        let records = state.suppressed - state.reported;
        if records == 0 || now < state.next_report {
            return None;
        }
        (state.reported, state.next_report) = (state.suppressed, now + REPORT_INTERVAL);
        let meters = state.meters.iter().flatten();
        let most = meters.max_by_key(|(_, meter)| meter.suppressed);
        let most_by = most.map(|(name, _)| name.clone()).unwrap_or_default();
        state.meters.iter_mut().flatten().for_each(|(_, meter)| meter.suppressed = 0);
        Some(Suppressed { records, most_by })
    }

    fn state(&self) -> MutexGuard<'_, MeterTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MeterTable {
    fn admit(&mut self, record: &LogRecord, len: usize, now: Instant) -> bool {
        let rate = record.meter.as_ref().and_then(|meter| self.rates.get(meter));
        let name = record.meter.as_deref().unwrap_or(&record.name);
        let meters = &mut self.meters[usize::from(record.meter.is_some())];
        let known = meters.get_mut(name);
        let mut buckets = known.as_ref().map_or(MeterBuckets::full(now), |meter| meter.buckets);
        let own = match rate {
            Some(meter) => named_meter::take(meter, buckets.own, len, now),
            None => METER.take(buckets.own, now),
        };
        let kept = METER.take(buckets.kept, now).zip(TOTAL.take(self.kept, now));
        let beyond = TOTAL.take(self.beyond, now);
        match (own, kept, beyond) {
            (Some(own), Some((kept, total)), _) => {
                (buckets, self.kept) = (MeterBuckets { own, kept }, total);
            }
            (Some(own), None, Some(beyond)) => (buckets.own, self.beyond) = (own, beyond),
            _ => {
                self.suppressed += 1;
                if let Some(meter) = known {
                    meter.suppressed += 1;
                }
                return false;
            }
        }
        match known {
            Some(meter) => meter.buckets = buckets,
            None => {
                if meters.len() >= MAX_METERS {
                    meters.retain(|_, meter| !meter.buckets.are_full(now));
                }
                meters.insert(name.to_owned(), LogMeter { buckets, suppressed: 0 });
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{AclVerdict, LogPriority, MeterUnit};

    fn record(name: &str, meter: Option<&str>) -> LogRecord {
        LogRecord {
            name: name.to_owned(),
            priority: LogPriority::Info,
            verdict: AclVerdict::Drop,
            is_from_lport: true,
            meter: meter.map(str::to_owned),
        }
    }

    /// The records that pass in `seconds` when each of `records` is offered 1,000 times a second.
    fn passed(meters: &LogMeters, start: Instant, seconds: u64, records: &[LogRecord]) -> Vec<u64> {
        let mut passed = vec![0; records.len()];
        for ms in 0..seconds * 1000 {
            let now = start + Duration::from_millis(ms);
            for (count, record) in passed.iter_mut().zip(records) {
                *count += u64::from(meters.admit(record, 125, now));
            }
        }
        passed
    }

    #[test]
    fn acl_writes_the_burst_plus_the_rate_when_it_is_flooded() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let [count] = passed(&meters, start, 10, &[record("a", None)])[..] else { panic!() };
        assert!((118..=120).contains(&count), "{count}");
        assert_eq!(meters.suppressed(), 10_000 - count);
        let late = start + Duration::from_secs(60);
        assert!(meters.admit(&record("a", None), 125, late), "it has recovered");
    }

    #[test]
    fn flooded_acl_leaves_the_rate_of_another_alone() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let flooded = [record("a", None)];
        assert!(passed(&meters, start, 5, &flooded)[0] > 20);
        assert!(meters.admit(&record("b", None), 125, start + Duration::from_secs(5)));
    }

    #[test]
    fn acls_share_the_meter_that_they_name() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let records = [record("a", Some("m")), record("b", Some("m")), record("c", None)];
        let count = passed(&meters, start, 10, &records);
        assert!((118..=120).contains(&(count[0] + count[1])), "{count:?}");
        assert!((118..=120).contains(&count[2]), "{count:?}");
    }

    #[test]
    fn meter_has_the_rate_that_is_set_and_other_names_the_default() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let meter =
            |name: &str, unit, rate, burst| NamedMeter { name: name.to_owned(), unit, rate, burst };
        // A packet has one kilobit.
        let slow = meter("slow", MeterUnit::Packets, 1, 3);
        meters.set(&[slow.clone(), meter("bits", MeterUnit::Kilobits, 2, 4)]);
        let records = ["slow", "bits", "unknown"].map(|name| record("a", Some(name)));
        let count = passed(&meters, start, 10, &records);
        assert!((12..=13).contains(&count[0]), "{count:?}");
        assert!((22..=24).contains(&count[1]), "{count:?}");
        assert!((118..=120).contains(&count[2]), "{count:?}");
        let later = start + Duration::from_millis(9_999);
        meters.set(&[slow]);
        assert!(!meters.admit(&records[0], 125, later), "it has not changed");
        let count = passed(&meters, later, 10, &records[1..2]);
        assert!((118..=120).contains(&count[0]), "it is gone: {count:?}");
        // The name of an ACL is none of a meter.
        let later = start + Duration::from_secs(60);
        let count = passed(&meters, later, 10, &[record("slow", None)]);
        assert!((118..=120).contains(&count[0]), "{count:?}");
    }

    #[test]
    fn total_bounds_the_records_of_many_acls_and_the_meters_stay_bounded() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let records: Vec<_> = (0..5000).map(|n| record(&format!("acl{n}"), None)).collect();
        let mut count = 0;
        for second in 0..30 {
            let now = start + Duration::from_secs(second);
            count += records.iter().rev().filter(|record| meters.admit(record, 125, now)).count();
            count += records.iter().filter(|record| meters.admit(record, 125, now)).count();
        }
        assert!(count <= 2 * (200 + 29 * 100), "{count}");
        assert!(meters.state().meters[0].len() <= MAX_METERS);
    }

    #[test]
    fn meter_with_a_high_rate_leaves_the_records_of_others_alone() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        let (unit, burst) = (MeterUnit::Packets, 100_000);
        meters.set(&[NamedMeter { name: "greedy".to_owned(), unit, rate: 100_000, burst }]);
        let records = [record("a", Some("greedy")), record("b", None), record("c", Some("modest"))];
        let count = passed(&meters, start, 10, &records);
        assert!((118..=120).contains(&count[1]), "{count:?}");
        assert!((118..=120).contains(&count[2]), "{count:?}");
        // What is kept for it, and all that lies beyond.
        assert!((1310..=1320).contains(&count[0]), "{count:?}");
    }

    #[test]
    fn report_names_the_acl_with_the_most_suppressed_records() {
        let start = Instant::now();
        let meters = LogMeters::new(start);
        assert_eq!(meters.report(start), None);
        let records = [record("a", None), record("b", None), record("b", None)];
        let written: u64 = passed(&meters, start, 1, &records).iter().sum();
        let expected = Suppressed { records: 3000 - written, most_by: "b".to_owned() };
        assert_eq!(meters.report(start), Some(expected));
        assert_eq!(meters.report(start + REPORT_INTERVAL), None, "none since then");
        assert!(!meters.admit(&records[0], 125, start + Duration::from_secs(1) / 100));
        assert_eq!(meters.report(start), None, "it is too early");
        assert!(meters.report(start + REPORT_INTERVAL).is_some());
    }
}
