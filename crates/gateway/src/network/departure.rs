//! Reports that a machine has gone, for a network that ends with its machine.

use std::io;

use towpath_io::doorbell::EventDoorbell;
use towpath_packet::ring::Doorbell;

use super::Network;
use super::crew::Crew;
use super::port::Port;

impl Network {
    /// Returns a file that becomes readable when the machine at any port has disconnected, or a
    /// port has failed, and stays so.
    ///
    /// # Errors
    /// Those of eventfd(2).
    pub fn departure(&mut self) -> io::Result<EventDoorbell> {
        let bell = EventDoorbell::new()?;
        self.departed = Some(bell.clone());
        self.crew.iter().try_for_each(Crew::tell_departure)?;
        Ok(bell)
    }

    /// Rings once when a machine has gone, if that matters.
    pub(super) fn tell_departure(&mut self) {
        let has_one = || self.ports.iter().any(Port::has_ended);
        if let Some(bell) = self.departed.take_if(|_| has_one()) {
            bell.ring();
        }
    }
}
