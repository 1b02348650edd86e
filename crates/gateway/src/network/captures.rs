//! Captures of ports and of the gateway, on whichever worker they are.

use std::io;

use towpath_io::doorbell::EventDoorbell;
use towpath_packet::Context;

use super::helper::Command;
use super::{CaptureError, GATEWAY_NAME, Network};
use crate::capture::{CAPTURES_MAX, CaptureSettings, Sniffer};

impl Network {
    /// Begins a capture of a port, or of the gateway's ([`GATEWAY_NAME`]). The capture ends when
    /// the sniffer is dropped or the port is removed.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing was changed.
    pub fn capture(
        &mut self,
        name: &str,
        settings: CaptureSettings,
        cx: &Context<'_>,
    ) -> Result<Sniffer, CaptureError> {
        if self.reap_captures()? == CAPTURES_MAX {
            return Err(CaptureError::TooMany);
        }
        let bytes = cx.memory.capacity_bytes();
        let ended = self.ports.capture_bell()?;
        match (self.find(name), &mut self.gateway) {
            (Err(_), Some(gateway)) if name == GATEWAY_NAME => {
                Ok(gateway.mirrors.add(settings, bytes, Some(ended))?)
            }
            (found, _) => Ok(self.capture_port(found?, settings, bytes, ended)?),
        }
    }

    /// Begins a capture of a port whose packets are in memory of `frame_bytes`. It rings `ended`
    /// when its reader is gone.
    fn capture_port(
        &mut self,
        index: usize,
        settings: CaptureSettings,
        frame_bytes: usize,
        ended: EventDoorbell,
    ) -> io::Result<Sniffer> {
        if self.ports.get(index).is_some() {
            return self.ports.capture(index, settings, frame_bytes, ended);
        }
        let (crew, worker) = self.worker_of(index);
        crew.ask(worker, |answer| Command::Capture(index, settings, ended, answer))?
    }

    /// Removes captures whose readers are gone. Returns the number of the others.
    fn reap_captures(&mut self) -> io::Result<usize> {
        let mut count = self.ports.reap_captures();
        if let Some(gateway) = &mut self.gateway {
            gateway.mirrors.reap();
            count += gateway.mirrors.len();
        }
        let of_others = self.crew.as_ref().map(|crew| crew.count(Command::CountCaptures));
        Ok(count + of_others.transpose()?.unwrap_or(0))
    }
}
