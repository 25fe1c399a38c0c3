//! Compares the DHCP options that actions support with those of ovn-northd.

use lflow::actions::{KnownOption, OptionProtocol};
use std::collections::BTreeSet;
use testkit::ovn::Ovn;
use testkit::require_program;

#[test]
fn options_of_ovn_northd_are_known_with_code_and_type() {
    require_program!("ovn-northd", "ovn-central");
    let ovn = Ovn::start("options");
    ovn.configure(&["ls-add any"]);
    for (table, protocol) in
        [("DHCP_Options", OptionProtocol::Dhcp4), ("DHCPv6_Options", OptionProtocol::Dhcp6)]
    {
        let row = |option: &KnownOption| {
            format!("{},{},{}", option.name, option.code, option.kind.name())
        };
        let known: BTreeSet<String> = protocol.table().iter().map(row).collect();
        let columns = "--format=csv --no-headings --columns=name,code,type list";
        let rows = ovn.sbctl(&format!("{columns} {table}"));
        let theirs: BTreeSet<String> = rows.lines().map(str::to_owned).collect();
        let unknown: Vec<_> = theirs.difference(&known).collect();
        assert!(!theirs.is_empty() && unknown.is_empty(), "{table}: {unknown:#?}");
    }
}
