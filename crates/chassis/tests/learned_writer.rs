//! Tests that addresses learned from packets are written once, at a bounded rate, and only if the
//! database does not have them.

use crate::program::Followed;
use flow::{DatapathKey, PortKey};
use ovsdb::Transaction;
use pipeline::{FdbKey, FdbPort, LearnEvent, MacBindingKey};
use std::time::{Duration, Instant};
use testkit::ovn::Ovn;
use testkit::require_program;
use wire::MacAddr;

const NETWORK: [&str; 6] = [
    "lr-add r0",
    "lrp-add r0 r0-s0 02:00:00:00:ff:01 10.0.0.1/24",
    "ls-add s0",
    "lsp-add s0 p0 -- lsp-set-addresses p0 unknown",
    "lsp-add s0 s0-r0 -- lsp-set-type s0-r0 router -- lsp-set-addresses s0-r0 router",
    "lsp-set-options s0-r0 router-port=r0-s0",
];

impl Followed<'_> {
    fn next(&mut self, now: Instant) -> (Option<Transaction>, Option<Instant>) {
        self.host.southbound_transaction(
            self.client.session().replica(),
            (now, 7),
            &Default::default(),
        )
    }

    /// Sends the transactions about the host itself until there are none.
    fn settle(&mut self) {
        for _ in 0..10 {
            let (Some(transaction), _) = self.next(Instant::now()) else { return };
            self.commit(transaction);
        }
        panic!("the host always has something to write");
    }

    /// The keys of a datapath and of one of its ports.
    fn keys(&self, ovn: &Ovn, port: &str) -> (DatapathKey, PortKey) {
        let get = |columns: &str| {
            let query = format!("--bare --columns={columns} find Port_Binding logical_port={port}");
            ovn.sbctl(&query).trim().to_owned()
        };
        let datapath = get("datapath");
        let datapath = ovn.sbctl(&format!("get Datapath_Binding {datapath} tunnel_key"));
        let port = get("tunnel_key").parse().ok().and_then(PortKey::new).expect("a key");
        (DatapathKey(datapath.trim().parse().expect("a key")), port)
    }
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

#[test]
fn latest_value_is_written_once_and_not_more_often_than_each_second() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("learned");
    ovn.configure(&NETWORK);
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- lsp-bind p0 h1");
    let mut host = Followed::reading_everything(&ovn);
    host.catch_up();
    host.settle();
    let (datapath, port) = host.keys(&ovn, "r0-s0");
    let key = MacBindingKey { datapath, port, ip: [10, 0, 0, 9].into() };
    let bound = || ovn.sbctl("--bare --columns=logical_port,ip,mac,timestamp list MAC_Binding");
    let start = Instant::now();
    host.host.handle_learn_events(vec![LearnEvent::MacBinding(key, mac(1))], start);
    let (Some(transaction), _) = host.next(start) else { panic!("nothing to write") };
    host.commit(transaction);
    assert_eq!(
        bound().split_whitespace().collect::<Vec<_>>(),
        ["r0-s0", "10.0.0.9", "02:00:00:00:00:01", "7"]
    );
    // Several stations claim the address in turn.
    for last in [2, 1, 3] {
        host.host.handle_learn_events(vec![LearnEvent::MacBinding(key, mac(last))], start);
    }
    let (early, again) = host.next(start + Duration::from_millis(500));
    assert!(early.is_none() && again.is_some());
    let (Some(transaction), _) = host.next(start + Duration::from_secs(1)) else {
        panic!("nothing to write")
    };
    host.commit(transaction);
    assert!(bound().contains("02:00:00:00:00:03"), "{}", bound());
    // Not written: the database already has the value, an override forbids it, or the port does not
    // exist.
    let later = start + Duration::from_secs(3);
    ovn.nbctl("static-mac-binding-add r0-s0 10.0.0.8 02:00:00:00:00:08");
    ovn.nbctl("set Static_MAC_Binding . override_dynamic_mac=true");
    host.catch_up();
    let no_port = PortKey::new(99).expect("a key");
    host.host.handle_learn_events(
        vec![
            LearnEvent::MacBinding(key, mac(3)),
            LearnEvent::MacBinding(MacBindingKey { ip: [10, 0, 0, 8].into(), ..key }, mac(9)),
            LearnEvent::MacBinding(MacBindingKey { port: no_port, ..key }, mac(9)),
        ],
        later,
    );
    assert_eq!((host.next(later).0.is_none(), host.next(later).1), (true, None));
}

#[test]
fn flood_is_written_in_parts_and_forgotten_when_nobody_takes_it() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("flood");
    ovn.configure(&NETWORK);
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- lsp-bind p0 h1");
    let mut host = Followed::reading_everything(&ovn);
    host.catch_up();
    host.settle();
    let (datapath, port) = host.keys(&ovn, "p0");
    let station = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let mac = MacAddr([2, 0, 0, 0, high, low]);
        LearnEvent::Fdb(FdbKey { datapath, vlan: 0, mac }, FdbPort::Logical(port))
    };
    let start = Instant::now();
    host.host.handle_learn_events((0..700).map(station).collect(), start);
    let (first, again) = host.next(start);
    let first = first.expect("there is something to write");
    assert_eq!(first.len(), 256);
    assert!(host.next(start).0.is_none(), "too soon");
    host.commit(first);
    let second = host.next(again.expect("more waits")).0.expect("more waits");
    assert_eq!(second.len(), 256);
    host.commit(second);
    let rows = ovn.sbctl("--bare --columns=mac list FDB");
    assert_eq!(rows.split_whitespace().count(), 512);
    let (late, again) = host.next(start + Duration::from_secs(5));
    assert!(late.is_none() && again.is_none());
}
