//! Compares the program of a host that follows a changing database with one that is built from the
//! whole database.

use chassis::{Host, Installation, Settings, of_southbound};
use flow::{Dscp, TunnelType};
use ovsdb::io::Client;
use ovsdb::{Config, Event, Replica, RequestId, RowChange, Transaction};
use pipeline::{Direction, Program, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::ovn::Ovn;
use testkit::random::{Random, environment};
use testkit::require_program;

const PATIENCE: Duration = Duration::from_secs(30);
/// The number of changes of the network, after each of which the programs are compared.
const CHANGES: usize = 60;

fn settings(remote: &str) -> Settings {
    Settings {
        system_id: "h1".into(),
        hostname: "h1".into(),
        remotes: vec![remote.parse().expect("a remote")],
        tunnels: vec![TunnelType::Geneve],
        encap_ip: [192, 0, 2, 1].into(),
        checksum: true,
        dscp: Dscp::Fixed(0),
        bridge: "br-int".into(),
        bridge_mappings: "".into(),
        cms_options: "".into(),
        transport_zones: BTreeSet::new(),
        monitor_all: false,
        probe_interval: None,
        announce_interval: None,
        upcall_cpu_percent: None,
        tls: None,
    }
}

/// A host that follows the database row by row.
pub struct Followed<'o> {
    ovn: &'o Ovn,
    pub client: Client,
    pub host: Host,
}

impl<'o> Followed<'o> {
    pub fn new(ovn: &'o Ovn) -> Self {
        Self::with_settings(ovn, settings(&ovn.southbound()))
    }

    /// A host that reads the whole database.
    pub fn reading_everything(ovn: &'o Ovn) -> Self {
        let settings = Settings { monitor_all: true, ..settings(&ovn.southbound()) };
        Self::with_settings(ovn, settings)
    }

    fn with_settings(ovn: &'o Ovn, settings: Settings) -> Self {
        let mut config = Config::new("OVN_Southbound", settings.remotes.clone());
        config.tables = of_southbound(&settings);
        let mut client = Client::new(config, None).expect("a client can be made");
        let mut host = Host::new(settings, "uplink", 1500);
        host.request_rows(client.session_mut());
        Self { ovn, client, host }
    }

    /// The number of rows of a table that it has.
    fn row_count(&self, table: &str) -> usize {
        self.client.session().replica().table(table).map_or(0, |table| table.len())
    }

    /// Waits until the replica has all changes of the database.
    pub fn catch_up(&mut self) {
        self.catch_up_behind(None);
    }

    /// Sends a transaction, and waits until the replica has its changes.
    pub fn commit(&mut self, transaction: Transaction) {
        let session = self.client.session_mut();
        let request = session.transact(transaction).expect("the session is ready");
        self.catch_up_behind(Some(request));
    }

    /// As [`Followed::catch_up`], and waits until `request` has its reply. The server sends the
    /// changes of a transaction before its reply.
    fn catch_up_behind(&mut self, mut request: Option<RequestId>) {
        self.ovn.nbctl("--wait=sb sync");
        let cfg = self.ovn.sbctl("get SB_Global . nb_cfg").trim().parse::<i64>().expect("a number");
        let end = Instant::now() + PATIENCE;
        let mut deadline = end;
        while let Some(event) = self.client.next_event(Some(deadline)) {
            let replica = self.client.session().replica();
            match event {
                Event::Update(update) => {
                    let is_first = update.is_first();
                    self.host.handle_southbound(replica, &update.changes, is_first, Instant::now());
                }
                Event::Transacted { id, .. } => request = request.filter(|sent| *sent != id),
                Event::ConditionsApplied { seqno } => self.host.conditions_applied(seqno, replica),
                Event::ConditionsRefused { error, .. } => panic!("{error}"),
                _ => {}
            }
            self.host.request_rows(self.client.session_mut());
            let replica = self.client.session().replica();
            let rows = replica.table("SB_Global").into_iter().flat_map(|table| table.rows());
            // Handles the remaining events that have arrived, without waiting for others.
            let is_there = rows.map(|row| row.value::<i64>("nb_cfg")).any(|has| has == Some(cfg));
            let is_done = is_there && request.is_none() && self.host.is_settled();
            deadline = if is_done { Instant::now() } else { end };
        }
        assert_eq!(request, None, "the transaction has no reply");
        assert!(self.host.is_settled(), "rows that it asked for have not arrived");
        let rows = self.client.session().replica().table("SB_Global");
        let rows = rows.into_iter().flat_map(|table| table.rows());
        let known: Vec<_> = rows.filter_map(|row| row.value::<i64>("nb_cfg")).collect();
        assert_eq!(known, [cfg], "it has not arrived");
    }

    fn installation(&mut self) -> Installation {
        self.host.install_again();
        self.host.installation(self.client.session().replica(), Instant::now()).expect("it is due")
    }

    /// The installation of a host that starts with the whole replica.
    fn rebuilt(&self) -> Installation {
        let replica = self.client.session().replica();
        let rows = replica.tables().flat_map(|table| table.rows());
        let changes: Vec<_> =
            rows.map(|row| RowChange { old: None, new: Some(Arc::clone(row)) }).collect();
        // This host asks for nothing, because the replica has all rows that it needs.
        let settings = Settings { monitor_all: true, ..self.host.settings().clone() };
        let mut host = Host::new(settings, "uplink", 1500);
        host.handle_southbound(replica, &changes, true, Instant::now());
        host.installation(replica, Instant::now()).expect("it is due")
    }
}

/// The whole program as lines of text, with addresses instead of the numbers of end points.
fn lines(installation: &Installation) -> BTreeSet<String> {
    let lines = lines_of(&installation.program).into_iter().map(|mut line| {
        for endpoint in &installation.endpoints {
            let number = format!("endpoint: {:?},", endpoint.id);
            line = line.replace(&number, &format!("endpoint: {},", endpoint.remote));
        }
        line
    });
    lines.collect()
}

fn lines_of(program: &Program) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut members: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (key, datapath) in program.datapaths() {
        let name = &datapath.name;
        lines.insert(format!("datapath {key} {name} {:?}", datapath.kind));
        for (port, logical) in &datapath.ports {
            lines.insert(format!("port {key} {port} {logical:?}"));
        }
        for (group, multicast) in &datapath.multicast {
            lines.insert(format!("group {key} {group} {multicast:?}"));
        }
        for group in &datapath.groups {
            members.entry(*group).or_default().push(key.to_string());
        }
    }
    for (port, role) in program.port_roles() {
        lines.insert(format!("role {port} {role:?}"));
    }
    for group in program.groups() {
        let mut of = members.remove(&group).unwrap_or_default();
        of.sort();
        let directions = [Direction::Ingress, Direction::Egress];
        let tables = directions.into_iter().flat_map(|direction| {
            (0..TableId::LOGICAL).filter_map(move |number| TableId::logical(direction, number))
        });
        let hairpin = [TableId::HAIRPIN, TableId::HAIRPIN_REPLY, TableId::HAIRPIN_SNAT];
        for table in tables.chain(hairpin) {
            for (row, _, flow) in program.rules(group, table) {
                let (residual, ops) = (&flow.residual, &flow.ops);
                let stage = (&flow.text.stage, flow.priority, flow.text.cookie);
                lines.insert(format!("{of:?} {stage:?} {row} {residual:?} {ops:?}"));
            }
        }
    }
    lines
}

/// Random changes of a network with a few switches, routers, ports, sets and hosts.
struct Changes {
    random: Random,
}

impl Changes {
    fn number(&mut self, below: usize) -> usize {
        self.random.below(below)
    }

    /// Makes one random change, which may have no effect.
    fn make(&mut self, ovn: &Ovn) {
        let (switch, port) = (self.number(4), self.number(6));
        let (host, member) = (1 + self.number(3), self.number(6));
        let lsp = format!("p{switch}-{port}");
        match self.number(17) {
            0 => ovn.nbctl(&format!("--may-exist ls-add s{switch}")),
            1 => ovn.nbctl(&format!("--if-exists ls-del s{switch}")),
            2..=5 => ovn.nbctl(&format!(
                "--may-exist ls-add s{switch} -- --may-exist lsp-add s{switch} {lsp} -- \
                 lsp-set-addresses {lsp} '02:00:00:00:0{switch}:0{port} 10.0.{switch}.1{port}'"
            )),
            6 => ovn.nbctl(&format!("--if-exists lsp-del {lsp}")),
            7 => ovn.nbctl(&format!(
                "--may-exist ls-add s{switch} -- --may-exist acl-add s{switch} to-lport {} \
                 'ip4.src == $as{member}' drop",
                10 + port
            )),
            8 => ovn.nbctl(&format!("--if-exists destroy Address_Set as{member}")),
            9 => ovn.nbctl(&format!(
                "--if-exists destroy Address_Set as{member} -- create Address_Set name=as{member} \
                 addresses=10.{port}.0.0/16"
            )),
            10 => ovn.nbctl(&format!(
                "--may-exist lr-add r0 -- --may-exist ls-add s{switch} -- --may-exist lrp-add r0 \
                 r0-s{switch} 02:00:00:00:ff:0{switch} 10.0.{switch}.1/24 -- --may-exist lsp-add \
                 s{switch} s{switch}-r0 -- lsp-set-type s{switch}-r0 router -- lsp-set-addresses \
                 s{switch}-r0 router -- lsp-set-options s{switch}-r0 router-port=r0-s{switch}"
            )),
            11 => ovn.nbctl("--if-exists lr-del r0"),
            12 | 13 => ovn.nbctl(&format!(
                "--may-exist ls-add s{switch} -- --may-exist lb-add lb{member} 10.9.9.{member}:80 \
                 10.0.{switch}.1{port}:8080 tcp -- --may-exist ls-lb-add s{switch} lb{member}"
            )),
            14 => ovn.nbctl(&format!("--if-exists lb-del lb{member}")),
            15 => ovn.sbctl(&format!(
                "--may-exist chassis-add h{host} geneve 192.0.2.{host} -- --if-exists lsp-unbind \
                 {lsp}"
            )),
            _ => ovn.sbctl(&format!("--if-exists chassis-del h{host}")),
        };
        // Binds each port to one of the existing hosts.
        let hosts = ovn.sbctl("--bare --columns=name list Chassis");
        let hosts: Vec<&str> = hosts.split_whitespace().collect();
        let ports = ovn.sbctl("--bare --columns=logical_port find Port_Binding 'type=\"\"'");
        let ports: Vec<&str> = ports.split_whitespace().collect();
        if let (Some(port), false) = (ports.get(port), hosts.is_empty()) {
            let host = hosts[member % hosts.len()];
            ovn.sbctl(&format!("--if-exists lsp-unbind {port} -- lsp-bind {port} {host}"));
        }
    }
}

#[test]
fn program_is_that_of_the_whole_database_after_any_change() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("program");
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- chassis-add h2 geneve 192.0.2.2");
    let mut followed = Followed::new(&ovn);
    let mut changes = Changes { random: Random::new(environment("WEFT_SEED", 7)) };
    let mut most = 0;
    for number in 0..CHANGES {
        changes.make(&ovn);
        followed.catch_up();
        most = most.max(followed.host.flow_counts().0);
        let (now, whole) = (lines(&followed.installation()), lines(&followed.rebuilt()));
        let lacking: Vec<_> = whole.difference(&now).take(3).collect();
        let stale: Vec<_> = now.difference(&whole).take(3).collect();
        assert!(
            lacking.is_empty() && stale.is_empty(),
            "{number}: lacks {lacking:#?}, has {stale:#?}"
        );
    }
    assert!(most > 100, "{most}");
    assert!(followed.host.bad_flows().is_empty(), "{:?}", followed.host.bad_flows());
}

/// The lines about the datapaths that have flows.
fn lines_in_use(installation: &Installation) -> BTreeSet<String> {
    let unused = installation.program.datapaths().filter(|(_, it)| it.groups.is_empty());
    let unused: Vec<String> = unused.map(|(key, _)| format!(" {key} ")).collect();
    let is_unused = |line: &String| {
        let kind = ["datapath", "port", "group"].iter().find_map(|kind| line.strip_prefix(kind));
        kind.is_some_and(|rest| unused.iter().any(|key| rest.starts_with(key)))
    };
    lines(installation).into_iter().filter(|line| !is_unused(line)).collect()
}

#[test]
fn host_that_reads_its_rows_has_the_program_of_one_that_reads_everything() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("partial");
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- chassis-add h2 geneve 192.0.2.2");
    let (mut partial, mut whole) = (Followed::new(&ovn), Followed::reading_everything(&ovn));
    let mut changes = Changes { random: Random::new(environment("WEFT_SEED", 8)) };
    let (mut most, mut fewer) = (0, 0);
    for number in 0..CHANGES {
        changes.make(&ovn);
        partial.catch_up();
        whole.catch_up();
        most = most.max(partial.host.flow_counts().0);
        for table in ["Port_Binding", "Logical_Flow"] {
            let counts = (partial.row_count(table), whole.row_count(table));
            assert!(counts.0 <= counts.1, "{number} {table}: {counts:?}");
            fewer += usize::from(counts.0 < counts.1);
        }
        let parts = [&mut partial, &mut whole].map(|host| lines_in_use(&host.installation()));
        let [has, wanted] = parts;
        let lacking: Vec<_> = wanted.difference(&has).take(3).collect();
        let more: Vec<_> = has.difference(&wanted).take(3).collect();
        assert!(
            lacking.is_empty() && more.is_empty(),
            "{number}: lacks {lacking:#?}, has {more:#?}"
        );
    }
    assert!(most > 50 && fewer > CHANGES / 2, "{most} {fewer}");
}

#[test]
fn bad_flow_is_left_out_and_named_and_no_other() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("bad");
    ovn.configure(&[
        "ls-add s0",
        "lsp-add s0 p0",
        "acl-add s0 to-lport 5 'ip4.src == 10.0.0.300' drop",
        "acl-add s0 to-lport 6 'ip4.src == 10.0.0.3' drop",
        "ls-add elsewhere",
        "lsp-add elsewhere p1",
        "acl-add elsewhere to-lport 5 'ip4.src == 10.0.0.300' drop",
    ]);
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- lsp-bind p0 h1");
    let mut followed = Followed::new(&ovn);
    followed.catch_up();
    let (flows, bad) = followed.host.flow_counts();
    assert!(bad == 1 && flows > 50, "{flows} {bad}");
    let (_, named) = followed.host.bad_flows().first_key_value().expect("one");
    let text = named.to_string();
    assert!(text.starts_with("ls_out_acl, priority 1005") && text.contains("10.0.0.300"), "{text}");
    assert_eq!(followed.host.take_warnings().len(), 1);
    ovn.nbctl("acl-del s0");
    followed.catch_up();
    assert_eq!(followed.host.flow_counts().1, 0);
    // No flows are compiled for a switch that has no port on this host any more.
    ovn.sbctl("lsp-unbind p0");
    followed.catch_up();
    assert_eq!(followed.host.flow_counts(), (0, 0));
}

#[test]
fn each_host_has_its_own_values_of_template_variables() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("templates");
    ovn.configure(&[
        "ls-add s0",
        "lsp-add s0 p0",
        "create Chassis_Template_Var chassis=h1 variables:vip=10.9.9.1 \
         'variables:where=\"10.0.0.1:80\"'",
        "create Chassis_Template_Var chassis=h2 variables:vip=10.9.9.2 \
         'variables:where=\"10.0.0.2:80\"'",
        "--template lb-add lb0 ^vip:80 ^where tcp",
        "ls-lb-add s0 lb0",
    ]);
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- lsp-bind p0 h1");
    for mut host in [Followed::new(&ovn), Followed::reading_everything(&ovn)] {
        host.catch_up();
        assert!(host.host.bad_flows().is_empty(), "{:?}", host.host.bad_flows());
        let named = |host: &mut Followed<'_>, what: &str| {
            let lines = lines(&host.installation());
            lines.iter().filter(|line| line.contains(what)).count()
        };
        // The balancer's flow and its hairpin flow.
        let (before, other) = (named(&mut host, "10.0.0.1"), named(&mut host, "10.0.0.2"));
        assert!(before >= 2 && other == 0, "{before} {other}");
        ovn.nbctl("set Chassis_Template_Var h1 variables:where='\"10.0.0.7:80\"'");
        host.catch_up();
        assert_eq!((named(&mut host, "10.0.0.1"), named(&mut host, "10.0.0.7")), (0, before));
        ovn.nbctl("remove Chassis_Template_Var h1 variables where");
        host.catch_up();
        // The text is the variable's name now, as with ovn-controller.
        assert!(!host.host.bad_flows().is_empty());
        ovn.nbctl("set Chassis_Template_Var h1 variables:where='\"10.0.0.1:80\"'");
        host.catch_up();
        assert!(host.host.bad_flows().is_empty(), "{:?}", host.host.bad_flows());
        assert_eq!(named(&mut host, "10.0.0.1"), before);
    }
}

#[test]
fn network_is_held_when_a_database_comes_back_empty() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("held");
    ovn.configure(&["ls-add s0", "lsp-add s0 p0"]);
    ovn.sbctl("chassis-add h1 geneve 192.0.2.1 -- lsp-bind p0 h1");
    let mut followed = Followed::new(&ovn);
    followed.catch_up();
    let before = lines(&followed.installation());
    let replica = followed.client.session().replica();
    let rows = replica.tables().flat_map(|table| table.rows());
    let gone: Vec<_> =
        rows.map(|row| RowChange { old: Some(Arc::clone(row)), new: None }).collect();
    let (empty, now) = (Replica::default(), Instant::now());
    let host = &mut followed.host;
    host.handle_southbound(&empty, &gone, true, now);
    assert!(host.holds_network());
    host.install_again();
    assert_eq!(lines(&host.installation(&empty, now).expect("it is due")), before);
    // The old network is kept until the rows come back, or the time is over.
    let back: Vec<_> =
        gone.iter().map(|change| RowChange { old: None, new: change.old.clone() }).collect();
    host.handle_southbound(replica, &back, false, now);
    assert!(!host.holds_network());
    assert_eq!(lines(&host.installation(replica, now).expect("it is due")), before);
    host.handle_southbound(&empty, &gone, true, now);
    let deadline = host.deadline().expect("it is held");
    host.handle_southbound(&empty, &[], false, deadline);
    assert_eq!((host.holds_network(), host.flow_counts().0), (false, 0));
}
