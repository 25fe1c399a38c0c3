//! The program of the switch, and its translation: the packet of a cache miss goes through the
//! tables of the program, which yields a list of datapath actions and the mask of a megaflow.
//!
//! A [`Program`] holds tables of flows, each a match and a list of [`Op`]s. Two other crates
//! compile text into this form: `lflow` reads OVN's logical flows and `ofctl` reads the flow syntax
//! of ovs-ofctl. [`translate()`] executes it directly; logical flows are not compiled to OpenFlow
//! first.
#![forbid(unsafe_code)]

mod flow;
mod learned;
mod observer;
mod op;
mod port_names;
mod port_security;
mod port_vlans;
mod predicate;
mod program;
mod program_diff;
mod reads;
mod recirc;
mod recorder;
mod state;
mod suggestion;
mod trace;
mod translate;
mod zones;

pub use self::flow::{Flow, FlowCounters, FlowId, FlowText};
pub use learned::{LearnLimits, LearnRefusal, LearnRefusals, LearnedTables, PortUsage, TableLimit};
pub use observer::{AfterTracking, Event, Nested, Observer, TrackRequest};
pub use op::{
    AffinityRule, CtBackend, CtBalance, CtOp, CtOriginal, CtZone, Direction, LearnedOp, Op, Operand,
};
pub use port_names::{InPortNames, UnknownPort};
pub use port_security::{PortSecurity, PortSecurityError, PortSecurityProblem};
pub use port_vlans::{NativeVlan, PortVlans, VlanSet};
pub use predicate::Predicate;
pub use program::{
    BridgePort, BridgePortKind, Datapath, DatapathKind, GroupId, LogicalPort, MulticastGroup,
    PortLocation, PortRole, Program, TableId, TunnelInport,
};
pub use program_diff::{Carried, ProgramDiff};
pub use reads::ProgramReads;
pub use recirc::{RecircTable, SuspendedState};
pub use recorder::{PlainRecorder, RecordedKey, Recorder};
pub use state::{
    Affinity, AffinityKey, AffinityVip, Dependency, FdbKey, FdbPort, Generation, IngressPort,
    LearnEvent, LearnedState, MacBindingKey, NextHopKey, StateQuery,
};
pub use suggestion::suggestion;
pub use trace::{AssumedCtStates, Assumptions, MatchedFlow, Trace, TraceStep, TraceSummary, trace};
pub use translate::{
    InjectionPort, MAX_DEPTH, MAX_STEPS, MAX_TOTAL_STEPS, Translation, retranslate, translate,
    translate_ops, translate_originated, translate_steady,
};
pub use zones::{CtZones, ZoneUser};
