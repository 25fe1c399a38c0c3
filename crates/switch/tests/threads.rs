//! The engine with its own threads.

use crate::fake::Fake;
use crate::{program, udp};
use datapath::provider::Datapath;
use std::sync::Arc;
use std::time::{Duration, Instant};
use switch::{Config, Limits, Switch};

const PORTS: (u16, u16) = (1000, 2000);
/// Far longer than any step of these tests takes.
const LONG: Duration = Duration::from_secs(20);

fn start(fake: &Arc<Fake>, revalidate: Duration) -> Switch {
    let datapath: Arc<dyn Datapath> = Arc::<Fake>::clone(fake);
    let limits = Limits { revalidate, upcall_workers: 2, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    Switch::start(datapath, program("actions=output:2"), &config).unwrap()
}

/// Sends packets until they go to `ports` without an upcall. Returns false after [`LONG`].
fn sends_to(fake: &Fake, ports: &[u32]) -> bool {
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        let sent = fake.receive(0, 1, &udp(1, 2, PORTS));
        if sent.is_some_and(|sent| sent == ports) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
        fake.take_sent();
    }
    false
}

#[test]
fn packets_are_answered_and_cached_and_follow_the_program() {
    let fake = Fake::new(1);
    // The interval is long, so only changes trigger revalidation.
    let switch = start(&fake, Duration::from_secs(3600));
    assert!(sends_to(&fake, &[2]));
    switch.publish(program("actions=output:3"));
    assert!(sends_to(&fake, &[3]));
    assert_eq!(switch.stats().sweeps, 0);
    switch.stop();
    assert!(fake.receive(0, 3, &udp(3, 2, PORTS)).is_none());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(fake.take_upcalls().len(), 1, "no thread handles the upcall any more");
}

#[test]
fn sweeps_run_periodically() {
    let fake = Fake::new(1);
    let switch = start(&fake, Duration::from_millis(1));
    let end = Instant::now() + LONG;
    while switch.stats().sweeps < 3 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(switch.stats().sweeps >= 3);
    assert!(!switch.has_ended());
}

#[test]
fn threads_end_when_the_datapath_stops() {
    let fake = Fake::new(1);
    let switch = start(&fake, Duration::from_millis(1));
    fake.stop();
    let end = Instant::now() + LONG;
    while !switch.has_ended() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(switch.has_ended());
}

#[test]
fn longest_turn_grows_while_a_thread_hangs() {
    const TURN: Duration = Duration::from_millis(200);
    let fake = Fake::new(1);
    let switch = start(&fake, Duration::from_millis(1));
    let wait_until = |is_long: bool| {
        let end = Instant::now() + LONG;
        while (switch.longest_turn() > TURN) != is_long && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(switch.longest_turn() > TURN, is_long);
    };
    let held = fake.queue.lock().unwrap();
    wait_until(true);
    drop(held);
    wait_until(false);
}
