//! [`Learned`]: the bindings and stations that a switch has learnt, with a limit on each, and ageing.

use crate::state::{BindingKey, Generation, Lesson, Question, State, StationKey, StationPlace};
use std::hash::Hash;
use std::time::{Duration, Instant};
use wire::MacAddr;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// How many generations there are: questions share them, so that "none" has one too. Two questions that share one are
/// asked again a little too often, nothing worse.
const GENERATIONS: usize = 4096;

/// How much may be learnt. What is known when a limit is reached stays; what is new is not learnt, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnLimits {
    /// Bindings of IP addresses.
    pub bindings: usize,
    /// Stations, over all networks.
    pub stations: usize,
    /// After this time without a lesson a binding or station is forgotten.
    pub max_age: Duration,
}

impl Default for LearnLimits {
    fn default() -> Self {
        Self { bindings: 65_536, stations: 65_536, max_age: Duration::from_secs(300) }
    }
}

/// Something learnt, and when it was last.
#[derive(Clone, Copy, Debug)]
struct Known<T> {
    value: T,
    /// `None`: configured, never forgotten.
    last: Option<Instant>,
}

/// What was learnt; see the module.
#[derive(Debug)]
pub struct Learned {
    limits: LearnLimits,
    bindings: Map<BindingKey, Known<MacAddr>>,
    stations: Map<StationKey, Known<StationPlace>>,
    generations: Box<[Generation]>,
    hash: ahash::RandomState,
    refused: u64,
}

impl Default for Learned {
    fn default() -> Self {
        Self::new(LearnLimits::default())
    }
}

impl Learned {
    /// Nothing yet.
    pub fn new(limits: LearnLimits) -> Self {
        Self {
            limits,
            bindings: Map::default(),
            stations: Map::default(),
            generations: vec![Generation::default(); GENERATIONS].into(),
            hash: ahash::RandomState::new(),
            refused: 0,
        }
    }

    /// Adds a binding or station that is configured: it is neither refused nor forgotten.
    pub fn configure(&mut self, lesson: Lesson) {
        self.store(lesson, None);
    }

    /// Learns. `false` when the limit is reached; what is configured is not overwritten either.
    pub fn learn(&mut self, lesson: Lesson, now: Instant) -> bool {
        let (known, configured, full) = match &lesson {
            Lesson::Binding(key, _) => {
                let old = self.bindings.get(key);
                let configured = old.is_some_and(|old| old.last.is_none());
                (old.is_some(), configured, self.bindings.len() >= self.limits.bindings)
            }
            Lesson::Station(key, _) => {
                let old = self.stations.get(key);
                let configured = old.is_some_and(|old| old.last.is_none());
                (old.is_some(), configured, self.stations.len() >= self.limits.stations)
            }
        };
        if configured || (full && !known) {
            self.refused += 1;
            return false;
        }
        self.store(lesson, Some(now));
        true
    }

    fn store(&mut self, lesson: Lesson, last: Option<Instant>) {
        let (question, changed) = match lesson {
            Lesson::Binding(key, value) => {
                let old = self.bindings.insert(key, Known { value, last });
                (Question::Binding(key), old.is_none_or(|old| old.value != value))
            }
            Lesson::Station(key, value) => {
                let old = self.stations.insert(key, Known { value, last });
                (Question::Station(key), old.is_none_or(|old| old.value != value))
            }
        };
        if changed {
            self.advance(&question);
        }
    }

    /// Notes that what was learnt is in use: called for the questions of megaflows that packets have hit. Packets of a station that is
    /// where it was teach nothing new, and yet must keep it from being forgotten.
    pub fn refresh(&mut self, question: &Question, now: Instant) {
        let last = match question {
            Question::Binding(key) => self.bindings.get_mut(key).map(|known| &mut known.last),
            Question::Station(key) => self.stations.get_mut(key).map(|known| &mut known.last),
        };
        if let Some(Some(last)) = last {
            *last = now.max(*last);
        }
    }

    /// When something was learnt last, or in use; `None` when it is not known, or configured.
    pub fn last(&self, question: &Question) -> Option<Instant> {
        match question {
            Question::Binding(key) => self.bindings.get(key)?.last,
            Question::Station(key) => self.stations.get(key)?.last,
        }
    }

    /// Forgets what was neither learnt again nor in use for longer than the limit.
    pub fn expire(&mut self, now: Instant) {
        let max_age = self.limits.max_age;
        let old = |last: Option<Instant>| {
            last.is_some_and(|last| now.saturating_duration_since(last) > max_age)
        };
        let bindings = self.bindings.iter().filter(|(_, known)| old(known.last));
        let stations = self.stations.iter().filter(|(_, known)| old(known.last));
        let gone: Vec<Question> = bindings
            .map(|(key, _)| Question::Binding(*key))
            .chain(stations.map(|(key, _)| Question::Station(*key)))
            .collect();
        gone.iter().for_each(|question| self.forget(question));
    }

    /// Forgets one thing.
    pub fn forget(&mut self, question: &Question) {
        let known = match question {
            Question::Binding(key) => self.bindings.remove(key).is_some(),
            Question::Station(key) => self.stations.remove(key).is_some(),
        };
        if known {
            self.advance(question);
        }
    }

    /// How many lessons were refused.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// True while the answer to a question is what it was at that generation.
    pub fn is_current(&self, question: &Question, generation: Generation) -> bool {
        self.generations[self.shard(question)] == generation
    }

    /// Every binding.
    pub fn bindings(&self) -> impl Iterator<Item = (&BindingKey, MacAddr)> {
        self.bindings.iter().map(|(key, known)| (key, known.value))
    }

    /// Every station.
    pub fn stations(&self) -> impl Iterator<Item = (&StationKey, StationPlace)> {
        self.stations.iter().map(|(key, known)| (key, known.value))
    }

    fn advance(&mut self, question: &Question) {
        let shard = self.shard(question);
        self.generations[shard].0 += 1;
    }

    fn shard(&self, question: &impl Hash) -> usize {
        self.hash.hash_one(question) as usize % GENERATIONS
    }
}

impl State for Learned {
    fn binding(&self, key: &BindingKey) -> (Option<MacAddr>, Generation) {
        let known = self.bindings.get(key).map(|known| known.value);
        (known, self.generations[self.shard(&Question::Binding(*key))])
    }

    fn station(&self, key: &StationKey) -> (Option<StationPlace>, Generation) {
        let known = self.stations.get(key).map(|known| known.value);
        (known, self.generations[self.shard(&Question::Station(*key))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow::{DatapathKey, PortKey, PortNo};

    fn station(last: u8) -> StationKey {
        StationKey { datapath: DatapathKey(0), vlan: 0, mac: MacAddr([2, 0, 0, 0, 0, last]) }
    }

    fn at(port: u32) -> StationPlace {
        StationPlace::Port(PortNo(port))
    }

    #[test]
    fn generation_changes_when_the_answer_does_and_only_then() {
        let (mut learned, now) = (Learned::default(), Instant::now());
        let (none, before) = learned.station(&station(1));
        assert!(learned.learn(Lesson::Station(station(1), at(3)), now));
        let (place, after) = learned.station(&station(1));
        assert_eq!((none, place), (None, Some(at(3))));
        assert_ne!(before, after);
        assert!(!learned.is_current(&Question::Station(station(1)), before));
        learned.learn(Lesson::Station(station(1), at(3)), now + Duration::from_secs(1));
        assert!(learned.is_current(&Question::Station(station(1)), after));
        learned.learn(Lesson::Station(station(1), at(4)), now);
        assert!(!learned.is_current(&Question::Station(station(1)), after));
    }

    #[test]
    fn what_is_not_learnt_again_is_forgotten() {
        let (mut learned, now) = (Learned::default(), Instant::now());
        learned.learn(Lesson::Station(station(1), at(3)), now);
        learned.configure(Lesson::Station(station(2), at(4)));
        let later = now + LearnLimits::default().max_age;
        learned.expire(later);
        assert_eq!(learned.stations().count(), 2);
        let generation = learned.station(&station(1)).1;
        learned.expire(later + Duration::from_millis(1));
        assert_eq!(learned.station(&station(1)).0, None);
        assert_ne!(learned.station(&station(1)).1, generation);
        assert_eq!(learned.station(&station(2)).0, Some(at(4)));
    }

    #[test]
    fn what_is_in_use_is_kept() {
        let (mut learned, now) = (Learned::default(), Instant::now());
        let max_age = LearnLimits::default().max_age;
        learned.learn(Lesson::Station(station(1), at(3)), now);
        let (_, generation) = learned.station(&station(1));
        learned.refresh(&Question::Station(station(1)), now + max_age);
        learned.refresh(&Question::Station(station(2)), now + max_age);
        assert_eq!(learned.last(&Question::Station(station(1))), Some(now + max_age));
        assert_eq!(learned.last(&Question::Station(station(2))), None);
        learned.expire(now + max_age * 2);
        assert_eq!(learned.station(&station(1)), (Some(at(3)), generation));
        learned.expire(now + max_age * 3);
        assert_eq!(learned.stations().count(), 0);
    }

    #[test]
    fn limits_hold_and_the_known_stays() {
        let limits = LearnLimits { bindings: 1, stations: 2, ..LearnLimits::default() };
        let (mut learned, now) = (Learned::new(limits), Instant::now());
        for last in 1..=5 {
            learned.learn(Lesson::Station(station(last), at(1)), now);
        }
        assert_eq!((learned.stations().count(), learned.refused()), (2, 3));
        assert!(learned.learn(Lesson::Station(station(1), at(9)), now));
        let key = BindingKey {
            datapath: DatapathKey(1),
            port: PortKey::FLOOD,
            ip: [192, 0, 2, 1].into(),
        };
        assert!(learned.learn(Lesson::Binding(key, MacAddr::BROADCAST), now));
        let other = BindingKey { datapath: DatapathKey(2), ..key };
        assert!(!learned.learn(Lesson::Binding(other, MacAddr::BROADCAST), now));
        learned.configure(Lesson::Binding(other, MacAddr::ZERO));
        assert!(!learned.learn(Lesson::Binding(other, MacAddr::BROADCAST), now));
        assert_eq!(learned.binding(&other).0, Some(MacAddr::ZERO));
    }
}
