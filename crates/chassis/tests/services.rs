//! Load balancers and address translation of a network file, beside what ovn-northd makes of the
//! same network.

use lflow::actions::{self, Stage};
use lflow::expr;
use network::{Network, logical_flows};
use pipeline::{Direction, TableId};
use std::collections::BTreeSet;
use testkit::ovn::Ovn;
use testkit::require_program;

const EXAMPLE: &str = include_str!("../../../examples/services.toml");

/// The same network for ovn-nbctl.
const COMMANDS: &str = r#"
    ls-add blue
    lsp-add blue client
    lsp-set-addresses client "02:00:00:00:01:0a 10.0.1.10"
    lsp-add blue web1
    lsp-set-addresses web1 "02:00:00:00:01:0b 10.0.1.11"
    lsp-add blue web2
    lsp-set-addresses web2 "02:00:00:00:01:0c 10.0.1.12"
    ls-add public
    lsp-add public outside
    lsp-set-addresses outside "02:00:00:00:02:0a 203.0.113.10"
    lr-add core
    lrp-add core core-blue 02:00:00:00:01:01 10.0.1.1/24
    lsp-add blue blue/core-blue
    lsp-set-type blue/core-blue router
    lsp-set-addresses blue/core-blue router
    lsp-set-options blue/core-blue router-port=core-blue
    lr-add edge
    set Logical_Router edge options:chassis=h2
    lrp-add edge edge-blue 02:00:00:00:01:02 10.0.1.2/24
    lsp-add blue blue/edge-blue
    lsp-set-type blue/edge-blue router
    lsp-set-addresses blue/edge-blue router
    lsp-set-options blue/edge-blue router-port=edge-blue
    lrp-add edge edge-public 02:00:00:00:02:02 203.0.113.2/24
    lsp-add public public/edge-public
    lsp-set-type public/edge-public router
    lsp-set-addresses public/edge-public router
    lsp-set-options public/edge-public router-port=edge-public
    pg-add servers web1 web2
    acl-add servers to-lport 1000 'outport == @servers && tcp.dst == 8080' allow-related
    acl-add servers to-lport 900 'outport == @servers && ip' drop
    lb-add web 10.9.0.1:80 10.0.1.11:8080,10.0.1.12:8080 tcp
    ls-lb-add blue web
    lr-nat-add edge snat 203.0.113.2 10.0.1.0/24
    lr-nat-add edge dnat_and_snat 203.0.113.20 10.0.1.12
"#;

/// The stages of load balancers and address translation.
const STAGES: [&str; 13] = [
    "ls_in_pre_lb",
    "ls_in_pre_stateful",
    "ls_in_lb",
    "ls_in_pre_hairpin",
    "ls_in_nat_hairpin",
    "ls_in_hairpin",
    "ls_out_pre_lb",
    "ls_out_pre_stateful",
    "lr_in_unsnat",
    "lr_in_dnat",
    "lr_out_undnat",
    "lr_out_post_undnat",
    "lr_out_snat",
];

/// The flows of these stages in a listing of ovn-sbctl, in canonical form.
fn flows(listing: &str) -> BTreeSet<String> {
    listing.lines().filter_map(flow).collect()
}

/// `STAGE PRIORITY: MATCH => ACTIONS`
fn flow(line: &str) -> Option<String> {
    let (head, rest) = line.split_once(", match=(")?;
    let (condition, actions) = rest.split_once("), action=(")?;
    let actions = actions.strip_suffix(')')?;
    let (stage, priority) = head.split_once("priority=")?;
    let stage = stage.split_once('(')?.1.split_once(')')?.0.trim();
    // Health checks, labels of connections, and the default of a stage, where weft may skip some.
    let is_other = condition.contains("svc_monitor_mac")
        || condition.contains("reg0[13]")
        || priority.trim() == "0";
    if !STAGES.contains(&stage) || is_other {
        return None;
    }
    let condition = expr::parse(condition).unwrap_or_else(|error| panic!("{condition}: {error}"));
    let at = Stage::of(TableId::logical(Direction::Ingress, 9).expect("a table"));
    let actions = actions::parse(actions, at).unwrap_or_else(|error| panic!("{actions}: {error}"));
    Some(format!("{stage} {}: {condition} => {actions}", priority.trim()))
}

#[test]
fn services_become_the_flows_that_ovn_northd_makes() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("services");
    let commands: Vec<&str> = COMMANDS.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
    ovn.configure(&commands);
    let network = Network::parse(EXAMPLE, "services.toml").unwrap_or_else(|e| panic!("{e}"));
    let own = logical_flows(&network).to_string();
    for (name, least) in [("blue", 16), ("edge", 8)] {
        let header = format!("Datapath: {name:?} ");
        let sections = own.split("Datapath: ").filter(|it| it.starts_with(&format!("{name:?} ")));
        let own = flows(&sections.collect::<String>());
        let theirs = flows(&ovn.sbctl(&format!("lflow-list {name}")));
        assert!(theirs.len() >= least, "{header} {theirs:#?}");
        let missing: Vec<_> = theirs.difference(&own).collect();
        let more: Vec<_> = own.difference(&theirs).collect();
        assert!(
            missing.is_empty() && more.is_empty(),
            "{header}\nmissing {missing:#?}\nmore {more:#?}"
        );
    }
}
