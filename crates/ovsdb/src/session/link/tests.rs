use super::*;

fn remotes(count: u16) -> Vec<Remote> {
    (0..count).map(|port| Remote::Tcp(([127, 0, 0, 1], 1000 + port).into())).collect()
}

/// Connects, or fails to, and returns the delay before that.
fn connect(link: &mut Link, now: &mut Instant) -> Duration {
    let before = *now;
    *now = link.deadline().unwrap().max(*now);
    assert!(link.poll_connect(*now).is_some());
    *now - before
}

#[test]
fn every_remote_is_tried_at_once_and_then_rounds_back_off() {
    let mut now = Instant::now();
    let mut link = Link::new(Times::default(), remotes(3), 7, now);
    let mut delays = Vec::new();
    let mut order = Vec::new();
    for _ in 0..18 {
        delays.push(connect(&mut link, &mut now));
        order.push(link.remote().unwrap().clone());
        link.ended(now, false);
    }
    assert_eq!(order[..3], order[3..6], "round robin");
    assert!(
        order[..3].iter().all(|one| order[..3].iter().filter(|other| *other == one).count() == 1)
    );
    assert_eq!(delays[0], Duration::ZERO);
    assert!(delays[1..3].iter().all(|delay| *delay <= Duration::from_millis(100)), "{delays:?}");
    for (round, longest) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8)] {
        for delay in &delays[round * 3..round * 3 + 3] {
            let longest = Duration::from_secs(longest);
            assert!((longest / 2..=longest).contains(delay), "round {round}: {delays:?}");
        }
    }
    assert_ne!(delays[3], delays[4], "jitter");
}

#[test]
fn delay_is_short_again_when_a_connection_has_lasted() {
    let mut now = Instant::now();
    let mut link = Link::new(Times::default(), remotes(1), 7, now);
    for _ in 0..5 {
        connect(&mut link, &mut now);
        link.ended(now, false);
    }
    connect(&mut link, &mut now);
    assert!(link.connected(now));
    link.synced(now);
    link.ended(now, false);
    assert!(connect(&mut link, &mut now) >= Duration::from_secs(4), "it lasted no time");
    assert!(link.connected(now));
    link.synced(now);
    now += Duration::from_secs(2);
    link.ended(now, false);
    assert!(connect(&mut link, &mut now) <= Duration::from_millis(100));
}

#[test]
fn server_is_probed_and_then_given_up_when_it_is_silent() {
    let second = Duration::from_secs(1);
    let mut now = Instant::now();
    let mut link = Link::new(Times::default(), remotes(1), 7, now);
    connect(&mut link, &mut now);
    link.connected(now);
    assert_eq!(link.due(now + 4 * second), DueAction::Nothing);
    assert_eq!(link.due(now + 5 * second), DueAction::Probe);
    assert_eq!(link.due(now + 9 * second), DueAction::Nothing);
    link.received(now + 9 * second);
    assert_eq!(link.due(now + 14 * second), DueAction::Probe);
    assert_eq!(link.due(now + 19 * second), DueAction::GiveUp(DisconnectReason::Inactive));
    link.received(now);
    link.set_syncing(true);
    assert_eq!(link.due(now + 59 * second), DueAction::Nothing, "a dump takes its time");
    assert_eq!(link.due(now + 60 * second), DueAction::Probe);
}

#[test]
fn connection_attempt_is_given_up_when_it_takes_too_long() {
    let mut now = Instant::now();
    let mut link = Link::new(Times::default(), remotes(1), 7, now);
    connect(&mut link, &mut now);
    assert_eq!(link.due(now + Duration::from_secs(9)), DueAction::Nothing);
    let due = link.due(now + Duration::from_secs(10));
    assert_eq!(due, DueAction::GiveUp(DisconnectReason::ConnectTimeout));
}

#[test]
fn remote_in_use_stays_when_it_is_in_the_new_list() {
    let now = Instant::now();
    let mut link = Link::new(Times::default(), remotes(3), 7, now);
    let current = link.remote().unwrap().clone();
    assert!(link.set_remotes(remotes(5)));
    assert_eq!(link.remote(), Some(&current));
    assert!(!link.set_remotes(vec![Remote::Unix("/a".into())]));
    assert!(!link.set_remotes(Vec::new()));
    assert_eq!((link.remote(), link.deadline()), (None, None));
}
