//! [`Learned`]: the bindings and stations that a switch has learnt, with a limit on each, and ageing.

mod table;

pub use table::{Refusal, Share, Taught};

use crate::state::{
    BindingKey, Generation, LearntAt, Lesson, Question, State, StationKey, StationPlace,
};
use std::hash::Hash;
use std::time::{Duration, Instant};
use table::Table;
use wire::MacAddr;

type Map<K, V> = std::collections::HashMap<K, V, ahash::RandomState>;

/// How many generations there are: questions share them, so that "none" has one too. Two questions that share one are
/// asked again a little too often, nothing worse. As many as there may be stations by default, 512 KiB: while a port learns as fast as it
/// can, 5,000 stations between two revalidations, a megaflow that rests on two answers is looked at in vain in one of 7
/// revalidations; with 4,096 generations it would be 9 of 10.
const GENERATIONS: usize = 65_536;

/// How much may be learnt. What is known when a limit is reached stays; what is new is not learnt, and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnLimits {
    /// Bindings of IP addresses, over all routers.
    pub bindings: Share,
    /// Stations, over all networks.
    pub stations: Share,
    /// After this time without a lesson a binding or station is forgotten.
    pub max_age: Duration,
}

impl Default for LearnLimits {
    fn default() -> Self {
        let share = Share { total: 65_536, per_port: 8192 };
        Self { bindings: share, stations: share, max_age: Duration::from_secs(300) }
    }
}

/// How many lessons were refused, and why.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Refusals {
    /// [`Refusal::Configured`].
    pub configured: u64,
    /// [`Refusal::PortFull`].
    pub port_full: u64,
    /// [`Refusal::TableFull`].
    pub table_full: u64,
}

impl Refusals {
    const fn count(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Configured => self.configured += 1,
            Refusal::PortFull => self.port_full += 1,
            Refusal::TableFull => self.table_full += 1,
        }
    }
}

/// What was learnt; see the module.
#[derive(Debug)]
pub struct Learned {
    limits: LearnLimits,
    bindings: Table<BindingKey, MacAddr>,
    stations: Table<StationKey, StationPlace>,
    generations: Box<[Generation]>,
    hash: ahash::RandomState,
    refused: Refusals,
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
            bindings: Table::new(limits.bindings),
            stations: Table::new(limits.stations),
            generations: vec![Generation::default(); GENERATIONS].into(),
            hash: ahash::RandomState::new(),
            refused: Refusals::default(),
        }
    }

    /// Adds a binding or station that is configured: it is neither refused nor forgotten, and no port's share.
    pub fn configure(&mut self, lesson: Lesson) {
        let is_news = match lesson {
            Lesson::Binding(key, mac) => self.bindings.configure(key, mac),
            Lesson::Station(key, place) => self.stations.configure(key, place),
        };
        if is_news {
            self.advance(&lesson.question());
        }
    }

    /// Learns from a port. What is configured is not overwritten.
    ///
    /// # Errors
    /// The lesson is refused, and that is counted.
    pub fn learn(
        &mut self,
        lesson: Lesson,
        teacher: LearntAt,
        now: Instant,
    ) -> Result<(), Refusal> {
        let learnt = match lesson {
            Lesson::Binding(key, mac) => self.bindings.learn(key, mac, teacher, now),
            Lesson::Station(key, place) => self.stations.learn(key, place, teacher, now),
        };
        match learnt {
            Ok(true) => self.advance(&lesson.question()),
            Ok(false) => {}
            Err(refusal) => {
                self.refused.count(refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// How many lessons of the kind the port could teach now, this one among them.
    ///
    /// # Errors
    /// It would be refused. Nothing is counted.
    pub fn room(&self, lesson: &Lesson, teacher: LearntAt) -> Result<usize, Refusal> {
        match lesson {
            Lesson::Binding(key, _) => self.bindings.admit(key, teacher),
            Lesson::Station(key, _) => self.stations.admit(key, teacher),
        }
    }

    /// Notes that what was learnt is in use: called for the questions of megaflows that packets have hit. Packets of a station that is
    /// where it was teach nothing new, and yet must keep it from being forgotten. That a binding is in use keeps it only as long as nobody has said otherwise.
    pub fn refresh(&mut self, question: &Question, now: Instant) {
        match question {
            Question::Binding(key) => {
                if self.bindings.get(key).is_some_and(|known| !known.is_contested) {
                    self.bindings.refresh(key, now);
                }
            }
            Question::Station(key) => self.stations.refresh(key, now),
        }
    }

    /// When something was learnt last, or in use; `None` when it is not known, or configured.
    pub fn last(&self, question: &Question) -> Option<Instant> {
        match question {
            Question::Binding(key) => self.bindings.get(key)?.last(),
            Question::Station(key) => self.stations.get(key)?.last(),
        }
    }

    /// Forgets what was neither learnt again nor in use for longer than the limit.
    pub fn expire(&mut self, now: Instant) {
        let max_age = self.limits.max_age;
        let is_old = |last| now.saturating_duration_since(last) > max_age;
        let bindings = self.bindings.old(is_old).copied().map(Question::Binding);
        let stations = self.stations.old(is_old).copied().map(Question::Station);
        let gone: Vec<Question> = bindings.chain(stations).collect();
        gone.iter().for_each(|question| self.forget(question));
    }

    /// Forgets one thing.
    pub fn forget(&mut self, question: &Question) {
        let was_known = match question {
            Question::Binding(key) => self.bindings.forget(key),
            Question::Station(key) => self.stations.forget(key),
        };
        if was_known {
            self.advance(question);
        }
    }

    /// How many lessons were refused.
    pub const fn refused(&self) -> Refusals {
        self.refused
    }

    /// How much is known.
    pub fn len(&self) -> usize {
        self.bindings.len() + self.stations.len()
    }

    /// True when nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ports that have taught bindings.
    pub fn ports_of_bindings(&self) -> impl Iterator<Item = (LearntAt, Taught)> {
        self.bindings.ports()
    }

    /// The ports that have taught stations.
    pub fn ports_of_stations(&self) -> impl Iterator<Item = (LearntAt, Taught)> {
        self.stations.ports()
    }

    /// True while the answer to a question is what it was at that generation.
    pub fn is_current(&self, question: &Question, generation: Generation) -> bool {
        self.generations[self.shard(question)] == generation
    }

    /// Every binding.
    pub fn bindings(&self) -> impl Iterator<Item = (&BindingKey, MacAddr)> {
        self.bindings.iter()
    }

    /// Every station.
    pub fn stations(&self) -> impl Iterator<Item = (&StationKey, StationPlace)> {
        self.stations.iter()
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

    fn teacher(port: u32) -> LearntAt {
        LearntAt { datapath: DatapathKey(0), port: at(port) }
    }

    /// A station is seen at a port.
    fn learn(
        learned: &mut Learned,
        key: StationKey,
        port: u32,
        now: Instant,
    ) -> Result<(), Refusal> {
        learned.learn(Lesson::Station(key, at(port)), teacher(port), now)
    }

    #[test]
    fn generation_changes_when_the_answer_does_and_only_then() {
        let (mut learned, now) = (Learned::default(), Instant::now());
        let (none, before) = learned.station(&station(1));
        assert_eq!(learn(&mut learned, station(1), 3, now), Ok(()));
        let (place, after) = learned.station(&station(1));
        assert_eq!((none, place), (None, Some(at(3))));
        assert_ne!(before, after);
        assert!(!learned.is_current(&Question::Station(station(1)), before));
        learn(&mut learned, station(1), 3, now + Duration::from_secs(1)).unwrap();
        assert!(learned.is_current(&Question::Station(station(1)), after));
        learn(&mut learned, station(1), 4, now).unwrap();
        assert!(!learned.is_current(&Question::Station(station(1)), after));
    }

    #[test]
    fn most_other_answers_stay_current_when_stations_are_learnt_by_the_thousand() {
        let mut learned = Learned::default();
        let key = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            StationKey { mac: MacAddr([2, 0, a, b, c, d]), ..station(0) }
        };
        let others = || (0..10_000).map(|number| Question::Station(key(1 << 20 | number)));
        for number in 0..5000 {
            learn(&mut learned, key(number), 1, Instant::now()).unwrap();
        }
        let changed =
            others().filter(|question| !learned.is_current(question, Generation(0))).count();
        assert!((100..1000).contains(&changed), "{changed} of 10,000 share a generation");
    }

    #[test]
    fn what_is_not_learnt_again_is_forgotten() {
        let (mut learned, now) = (Learned::default(), Instant::now());
        learn(&mut learned, station(1), 3, now).unwrap();
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
        learn(&mut learned, station(1), 3, now).unwrap();
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

    /// A network in which so much may be learnt of stations: of all ports, of one.
    fn limited(total: usize, per_port: usize) -> Learned {
        let stations = Share { total, per_port };
        Learned::new(LearnLimits { stations, ..LearnLimits::default() })
    }

    /// Stations from `first` on are seen at a port: how many are learnt, and why the first of the others is not.
    fn see(learned: &mut Learned, port: u32, first: u8, count: u8) -> (usize, Option<Refusal>) {
        let seen = (first..).take(count.into());
        let learnt: Vec<_> =
            seen.map(|n| learn(learned, station(n), port, Instant::now())).collect();
        let refusal = learnt.iter().find_map(|learnt| learnt.err());
        (learnt.into_iter().filter(Result::is_ok).count(), refusal)
    }

    #[test]
    fn port_that_floods_neither_pushes_out_others_nor_takes_their_room() {
        let mut learned = limited(100, 10);
        assert_eq!(see(&mut learned, 1, 0, 3), (3, None));
        assert_eq!(see(&mut learned, 2, 10, 50), (10, Some(Refusal::PortFull)));
        let known: Vec<_> = (0..3).map(|n| learned.station(&station(n)).0).collect();
        assert_eq!(known, [Some(at(1)); 3]);
        assert_eq!(see(&mut learned, 1, 100, 7), (7, None));
        let refused = Refusals { port_full: 40, ..Refusals::default() };
        assert_eq!((learned.len(), learned.refused()), (20, refused));
        let ports = |number| learned.ports_of_stations().find(|(p, _)| p.port == at(number));
        assert_eq!(ports(2).unwrap().1, Taught { known: 10, refused: 40 });
        assert_eq!(ports(1).unwrap().1, Taught { known: 10, refused: 0 });
    }

    #[test]
    fn ports_that_flood_together_leave_room_for_one_more() {
        let mut learned = limited(64, 64);
        for (port, learnt) in [(1, 32), (2, 16), (3, 8), (4, 4)] {
            let first = port as u8 * 50;
            assert_eq!(see(&mut learned, port, first, 40), (learnt, Some(Refusal::TableFull)));
        }
        assert_eq!(see(&mut learned, 5, 0, 2), (2, None));
        assert_eq!(learned.refused().table_full, 8 + 24 + 32 + 36);
    }

    #[test]
    fn station_moves_to_a_port_that_has_room_and_to_no_other() {
        let mut learned = limited(4, 2);
        assert_eq!(see(&mut learned, 1, 1, 1), (1, None));
        assert_eq!(see(&mut learned, 2, 2, 1), (1, None));
        assert_eq!(see(&mut learned, 2, 1, 1), (1, None), "whatever room there is in the table");
        assert_eq!(see(&mut learned, 1, 3, 1), (1, None), "it has left its room at the first");
        assert_eq!(see(&mut learned, 2, 3, 1), (0, Some(Refusal::PortFull)), "it stays there");
        let places = [1, 2, 3].map(|n| learned.station(&station(n)).0);
        assert_eq!(places, [Some(at(2)), Some(at(2)), Some(at(1))]);
        learned.forget(&Question::Station(station(2)));
        assert_eq!(see(&mut learned, 2, 3, 1), (1, None));
        assert!(learned.ports_of_stations().all(|(port, _)| port.port == at(2)));
    }

    #[test]
    fn configured_is_never_overwritten_and_takes_no_ports_share() {
        let mut learned = limited(8, 1);
        learned.configure(Lesson::Station(station(1), at(1)));
        assert_eq!(see(&mut learned, 1, 1, 1), (0, Some(Refusal::Configured)));
        assert_eq!(see(&mut learned, 1, 2, 1), (1, None));
        learned.configure(Lesson::Station(station(2), at(1)));
        assert_eq!(learned.ports_of_stations().count(), 0);
        assert_eq!(see(&mut learned, 1, 3, 1), (1, None));
        assert_eq!(learned.refused(), Refusals { configured: 1, ..Refusals::default() });
    }

    #[test]
    fn room_is_what_a_port_can_teach_until_it_is_refused() {
        let mut learned = limited(20, 6);
        let lesson = |n, port| Lesson::Station(station(n), at(port));
        for (port, first, room) in [(1, 0, 6), (2, 50, 6), (3, 100, 4), (4, 150, 2)] {
            let asked = learned.room(&lesson(200, port), teacher(port));
            assert_eq!(asked, Ok(room), "of port {port}");
            assert_eq!(see(&mut learned, port, first, 8).0, room, "of port {port}");
        }
        let refusal = |n, port| learned.room(&lesson(n, port), teacher(port)).err();
        assert_eq!(refusal(200, 1), Some(Refusal::PortFull));
        assert_eq!(refusal(200, 3), Some(Refusal::TableFull));
        assert_eq!(learned.room(&lesson(0, 1), teacher(1)), Ok(1), "it is the port's already");
        assert_eq!(learned.room(&lesson(0, 3), teacher(3)), Ok(2), "it moves");
    }

    fn bindings_of(share: Share) -> Learned {
        Learned::new(LearnLimits { bindings: share, ..LearnLimits::default() })
    }

    fn bound(datapath: u32, last: u8) -> BindingKey {
        let (datapath, port) = (DatapathKey(datapath), PortKey::FLOOD);
        BindingKey { datapath, port, ip: [192, 0, 2, last].into() }
    }

    #[test]
    fn bindings_are_limited_by_the_port_that_teaches_them_whatever_they_are_behind() {
        let mut learned = bindings_of(Share { total: 100, per_port: 2 });
        let now = Instant::now();
        let mut learn =
            |key, port| learned.learn(Lesson::Binding(key, MacAddr::BROADCAST), teacher(port), now);
        assert_eq!(learn(bound(1, 1), 1), Ok(()));
        assert_eq!(learn(bound(2, 1), 1), Ok(()));
        assert_eq!(learn(bound(1, 2), 1), Err(Refusal::PortFull));
        assert_eq!(learn(bound(1, 2), 2), Ok(()), "behind the same router's port");
        let taught: std::collections::BTreeMap<_, _> = learned.ports_of_bindings().collect();
        assert_eq!(taught[&teacher(1)], Taught { known: 2, refused: 1 });
        assert_eq!(taught[&teacher(2)], Taught { known: 1, refused: 0 });
        learned.configure(Lesson::Binding(bound(2, 2), MacAddr::ZERO));
        let lesson = Lesson::Binding(bound(2, 2), MacAddr::BROADCAST);
        assert_eq!(learned.learn(lesson, teacher(3), now), Err(Refusal::Configured));
        assert_eq!(learned.binding(&bound(2, 2)).0, Some(MacAddr::ZERO));
    }

    #[test]
    fn binding_that_is_contested_is_forgotten_although_it_is_in_use() {
        let mut learned = bindings_of(Share { total: 100, per_port: 1 });
        let (now, max_age) = (Instant::now(), LearnLimits::default().max_age);
        let macs = [1, 2].map(|last| MacAddr([2, 0, 0, 0, 0, last]));
        for last in [1, 2] {
            let lesson = Lesson::Binding(bound(1, last), macs[0]);
            learned.learn(lesson, teacher(last.into()), now).unwrap();
        }
        let moved = Lesson::Binding(bound(1, 1), macs[1]);
        assert_eq!(learned.learn(moved, teacher(2), now), Err(Refusal::PortFull));
        let later = now + max_age + Duration::from_millis(1);
        for last in [1, 2] {
            learned.refresh(&Question::Binding(bound(1, last)), later);
        }
        assert_eq!(learned.binding(&bound(1, 1)).0, Some(macs[0]));
        learned.expire(later);
        let known = [1, 2].map(|last| learned.binding(&bound(1, last)).0);
        assert_eq!(known, [None, Some(macs[0])]);
        // Asked anew, and answered by who is believed.
        learned.learn(moved, teacher(3), later).unwrap();
        learned.refresh(&Question::Binding(bound(1, 1)), later + max_age);
        assert_eq!(learned.last(&Question::Binding(bound(1, 1))), Some(later + max_age));
    }
}
