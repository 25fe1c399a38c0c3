//! The program of the switch: what it does with packets, in which languages that is written, and how one packet's way
//! through it becomes a mask and a list of actions.
//!
//! Two languages, OVN's logical flows (`logical`) and the flow syntax of ovs-ofctl (`ofctl`), are compiled to one form
//! ([`Program`], [`Op`]), and [`translate()`] executes that. There is no OpenFlow between logical flows and decisions.
#![forbid(unsafe_code)]

mod flow;
mod inports;
mod learned;
mod observer;
mod op;
mod port_security;
mod predicate;
mod program;
mod recorder;
mod state;
mod suggestion;
mod trace;
mod translate;

pub use self::flow::{Flow, FlowCounters, FlowId, FlowText};
pub use inports::{InPortNames, UnknownPort};
pub use learned::{LearnLimits, LearnRefusal, LearnRefusals, LearnedTables, PortUsage, TableLimit};
pub use observer::{Event, Nested, Observer};
pub use op::{Direction, LearnedOp, Op, Operand};
pub use port_security::{PortSecurity, PortSecurityError, PortSecurityProblem};
pub use predicate::Predicate;
pub use program::{
    BridgePort, BridgePortKind, Datapath, DatapathKind, GroupId, LogicalPort, MulticastGroup,
    PortLocation, PortRole, Program, TableId, TunnelInport,
};
pub use recorder::{PlainRecorder, RecordedKey, Recorder};
pub use state::{
    Dependency, FdbKey, FdbPort, Generation, IngressPort, LearnEvent, LearnedState, MacBindingKey,
    StateQuery,
};
pub use suggestion::suggestion;
pub use trace::{MatchedFlow, Step, Trace, TraceSummary, trace};
pub use translate::{MAX_DEPTH, MAX_STEPS, MAX_TOTAL_STEPS, Translation, retranslate, translate};
