//! Sends the announcements of addresses on this host, such as gratuitous ARP, to physical networks.

use super::Follower;
use chassis::AnnouncementKey;
use pipeline::InjectionPort;
use services::announce::Announcer;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The maximum number of frames that one turn sends. The others wait for the next turn.
const BURST: usize = 256;
/// The pause between two turns while frames wait.
const PAUSE: Duration = Duration::from_millis(20);

/// The announcements of this host.
pub(super) struct Announcements {
    announcer: Announcer<AnnouncementKey>,
    /// The ports from which the frames enter the pipeline.
    from: BTreeMap<AnnouncementKey, InjectionPort>,
    start: Instant,
    /// The earliest time of the next turn.
    earliest: Instant,
}

impl Default for Announcements {
    fn default() -> Self {
        let (announcer, from) = (Announcer::default(), BTreeMap::new());
        Self { announcer, from, start: Instant::now(), earliest: Instant::now() }
    }
}

impl Follower {
    /// Sends the announcements that are due. Returns when the next ones are due.
    pub(super) fn announce(&mut self) -> Option<Instant> {
        let Announcements { announcer, from, start, earliest } = &mut self.announcements;
        let now = Instant::now();
        let now_ms = ms(now.duration_since(*start));
        let (southbound, host) = (&self.joined.southbound, &mut self.joined.host);
        let lasting_ms = host.settings().announce_interval.map(ms);
        if let Some(all) = host.take_announcements(southbound.replica()) {
            *from = all.iter().map(|(key, it)| (key.clone(), it.from)).collect();
            let subjects = all.into_iter().map(|(key, it)| (key, it.subject)).collect();
            announcer.set(subjects, lasting_ms, now_ms);
        }
        if *earliest <= now {
            let device = self.daemon.deployment().config.uplink_port;
            let frames = announcer.poll(now_ms, BURST);
            for (key, frame) in &frames {
                let Some(from) = from.get(key) else { continue };
                // Fails only when the datapath has stopped.
                let _ = self.daemon.switch.originate_by(frame, *from, device);
            }
            if !frames.is_empty() {
                *earliest = now + PAUSE;
            }
        }
        let due = *start + Duration::from_millis(announcer.due_ms()?);
        Some(due.max(*earliest))
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
