//! A logical switch with two guests.

use flow::{DatapathKey, PortKey, PortNo};
use lflow::{Loader, LogicalFlow};
use pipeline::{
    DatapathKind, Direction, FlowId, LogicalPort, PortLocation, PortRole, PortSecurity,
};

const SWITCH: DatapathKey = DatapathKey(1);

pub fn add(
    loader: &mut Loader,
    (direction, table): (Direction, u8),
    priority: u16,
    condition: &str,
    actions: &str,
) -> FlowId {
    let flow = LogicalFlow {
        datapaths: vec![SWITCH],
        direction,
        table,
        priority,
        stage: "stage".into(),
        condition: condition.into(),
        actions: actions.into(),
        source: "test:1".into(),
        cookie: 0,
    };
    loader.add_flow(&flow).unwrap_or_else(|error| panic!("{error}"))
}

/// A switch that forwards to its guests 1 and 2 in ingress table 0 with priority 50.
pub fn switch() -> Loader {
    let mut loader = Loader::default();
    loader.add_datapath(SWITCH, "sw", DatapathKind::Switch);
    for number in 1..=2u16 {
        let location = PortLocation::Local(PortNo(number.into()));
        let port = PortKey::new(number).unwrap();
        let (name, security) = (format!("vm{number}"), PortSecurity::default());
        loader.set_port(SWITCH, port, LogicalPort { name, location, security });
        loader
            .program_mut()
            .set_port_role(PortNo(number.into()), PortRole::Vif { datapath: SWITCH, port });
        let (condition, actions) = (
            format!("eth.dst == 02:00:00:00:00:0{number}"),
            format!("outport = \"vm{number}\"; output;"),
        );
        add(&mut loader, (Direction::Ingress, 0), 50, &condition, &actions);
    }
    add(&mut loader, (Direction::Egress, 0), 0, "1", "output;");
    loader
}
