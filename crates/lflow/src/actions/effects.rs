//! Parses statements with effects outside the packet: logs, meters, samples, forwarding groups, and
//! work of the controller.

use super::ast::{Action, Log, LogVerdict, ObservationPoint, Sample, Severity};
use super::options::EVENT;
use super::parse::{FieldRequirement, Parser};
use crate::error::SyntaxError;
use crate::token::TokenKind;

/// The limit on the name of a log record, in bytes.
const MAX_LOG_NAME_BYTES: usize = 63;

impl Parser<'_> {
    pub(super) fn log(&mut self) -> Result<Action, SyntaxError> {
        let (mut name, mut verdict, mut severity, mut meter) = (None, None, Severity::Info, None);
        if self.accept(&TokenKind::LeftParen) {
            while !self.accept(&TokenKind::RightParen) {
                if self.accept_word("verdict") {
                    verdict = Some(self.word_of(LogVerdict::from_name, "allow, drop or reject")?);
                } else if self.accept_word("severity") {
                    let words = "alert, warning, notice, info or debug";
                    severity = self.word_of(Severity::from_name, words)?;
                } else if self.accept_word("name") {
                    name = Some(self.log_name()?);
                } else if self.accept_word("meter") {
                    self.expect(&TokenKind::Assign)?;
                    meter = Some(self.text().ok_or_else(|| self.expecting("string"))?);
                } else {
                    return Err(self.expecting("name, verdict, severity or meter"));
                }
                self.accept(&TokenKind::Comma);
            }
        }
        let verdict = verdict.ok_or_else(|| self.expecting("verdict"))?;
        Ok(Action::Log(Log { name, verdict, severity, meter }))
    }

    fn log_name(&mut self) -> Result<Box<str>, SyntaxError> {
        self.expect(&TokenKind::Assign)?;
        let start = self.span().start;
        let name = self.text().ok_or_else(|| self.expecting("string"))?;
        if name.len() > MAX_LOG_NAME_BYTES {
            return Err(self.error_from(start, "name must be shorter than 64 characters"));
        }
        Ok(name)
    }

    /// Parses `= WORD`.
    fn word_of<T>(
        &mut self,
        from_name: impl Fn(&str) -> Option<T>,
        what: &str,
    ) -> Result<T, SyntaxError> {
        self.expect(&TokenKind::Assign)?;
        let word = match self.kind() {
            TokenKind::Identifier(name) => from_name(name),
            _ => None,
        };
        let word = word.ok_or_else(|| self.expecting(what))?;
        self.advance();
        Ok(word)
    }

    pub(super) fn set_meter(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let start = self.span().start;
        let rate_kbps = self.kilobits()?;
        if rate_kbps == 0 {
            return Err(self.error_from(start, "Rate 0 for set_meter is not valid."));
        }
        let burst_kb = if self.accept(&TokenKind::Comma) { self.kilobits()? } else { 0 };
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::SetMeter { rate_kbps, burst_kb })
    }

    fn kilobits(&mut self) -> Result<u64, SyntaxError> {
        let value = self.decimal().ok_or_else(|| self.expecting("decimal number"))?;
        self.advance();
        Ok(value)
    }

    pub(super) fn forward_group(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let mut liveness = false;
        if self.accept_word("liveness") {
            self.expect(&TokenKind::Assign)?;
            liveness = self.boolean()?;
            self.expect(&TokenKind::Comma)?;
        }
        if !self.accept_word("childports") {
            return Err(self.expecting("childports"));
        }
        self.expect(&TokenKind::Assign)?;
        let mut ports = Vec::new();
        loop {
            ports.push(self.text().ok_or_else(|| self.expecting("logical switch port"))?);
            self.accept(&TokenKind::Comma);
            if self.accept(&TokenKind::RightParen) {
                return Ok(Action::ForwardGroup { liveness, ports: ports.into() });
            }
        }
    }

    pub(super) fn trigger_event(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        if !self.accept_word("event") {
            return Err(self.expecting("event"));
        }
        self.expect(&TokenKind::Assign)?;
        if !matches!(self.kind(), TokenKind::Text(name) if name == EVENT) {
            return Err(self.expecting(&format!("\"{EVENT}\"")));
        }
        self.advance();
        self.accept(&TokenKind::Comma);
        Ok(Action::TriggerEvent(self.event_options()?))
    }

    pub(super) fn bind_vport(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let name = self.text().ok_or_else(|| self.expecting("port name string"))?;
        self.expect(&TokenKind::Comma)?;
        let parent = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::BindVport { name, parent })
    }

    pub(super) fn handle_svc_check(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        let port = self.field_of_kind(FieldRequirement::Port)?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::HandleSvcCheck(port))
    }

    pub(super) fn handle_bfd_msg(&mut self) -> Result<Action, SyntaxError> {
        self.expect(&TokenKind::LeftParen)?;
        self.expect(&TokenKind::RightParen)?;
        Ok(Action::HandleBfdMsg)
    }

    pub(super) fn sample(&mut self) -> Result<Action, SyntaxError> {
        let mut sample = Sample {
            probability: 0,
            collector_set: 0,
            domain: 0,
            point: ObservationPoint::Number(0),
        };
        if self.accept(&TokenKind::LeftParen) {
            while !self.accept(&TokenKind::RightParen) {
                self.sample_argument(&mut sample)?;
                self.accept(&TokenKind::Comma);
            }
        }
        if sample.probability == 0 {
            return Err(self.error_whole("probability must be greater than zero"));
        }
        Ok(Action::Sample(sample))
    }

    fn sample_argument(&mut self, sample: &mut Sample) -> Result<(), SyntaxError> {
        if self.accept_word("probability") {
            self.expect(&TokenKind::Assign)?;
            sample.probability = self.uint16("probability")?;
        } else if self.accept_word("collector_set") {
            self.expect(&TokenKind::Assign)?;
            sample.collector_set = self.uint32("collector set")?;
        } else if self.accept_word("obs_domain") {
            self.expect(&TokenKind::Assign)?;
            let domain = self.decimal().and_then(|value| u8::try_from(value).ok());
            sample.domain = domain.ok_or_else(|| self.expecting("obs_domain of 8 bits"))?;
            self.advance();
        } else if self.accept_word("obs_point") {
            self.expect(&TokenKind::Assign)?;
            sample.point = if self.accept(&TokenKind::AddressSet("cookie")) {
                ObservationPoint::Cookie
            } else {
                ObservationPoint::Number(self.uint32("number or $cookie")?)
            };
        } else {
            let arguments = "probability, collector_set, obs_domain or obs_point";
            return Err(self.expecting(arguments));
        }
        Ok(())
    }

    fn uint32(&mut self, what: &str) -> Result<u32, SyntaxError> {
        let value = self.decimal().and_then(|value| u32::try_from(value).ok());
        let value = value.ok_or_else(|| self.expecting(what))?;
        self.advance();
        Ok(value)
    }
}
