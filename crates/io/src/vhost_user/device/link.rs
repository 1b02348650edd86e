//! The state of the link, and the largest packet, while the device is used.
//!
//! A front end that takes reports ([`Session::takes_reports`]) gets one when the link goes down or
//! up. To all others, such as QEMU's network cards, the link is up as long as the connection lasts.
//! So for them a link that goes down ends the session, and removes the listening socket: there is
//! no connection until the link is up again.
//!
//! A session continues, and its guest learns nothing, if the guest could not continue with another
//! one: on the only connection of a device ([`VhostUser::from_socket`]), and with packed rings
//! without an in-flight region. QEMU forgets the position of such rings when the connection ends.

use super::super::events::SessionEnd;
use super::super::session::{Session, feature};
use super::{Endpoint, TOKEN_ENDPOINT, VhostUser, VhostUserError};
use crate::endpoint::Listener;
use crate::reactor::Interest;
use towpath_packet::time::Instant;

impl VhostUser {
    /// Sets the link up or down, as the guest sees it. Packets of a session that continues still
    /// pass; the owner of the device drops them. No front end connects while the link is
    /// down. What the end of a session needs is done in the next turn, which is due at once.
    ///
    /// # Errors
    /// The listening socket cannot be opened again. The link stays down.
    pub fn set_link(&mut self, is_up: bool) -> Result<(), VhostUserError> {
        if is_up == self.is_up {
            return Ok(());
        }
        if is_up {
            self.open_socket()?;
        } else {
            self.close_socket();
        }
        self.is_up = is_up;
        self.turn_at = Some(Instant::START);
        let Some(mut peer) = self.peer.take() else { return Ok(()) };
        peer.session.set_link(is_up);
        let is_reported = peer.session.takes_reports() && peer.channel.report_change();
        if !is_up && !is_reported && self.may_part(&peer.session) {
            peer.pending = Some(self.ending(&peer, SessionEnd::LinkDown));
        }
        self.peer = Some(peer);
        Ok(())
    }

    /// Sets the largest IP packet that the guest gets, now and in later sessions, and the largest
    /// MTU that a front end may set. A guest or a front end that has agreed on a smaller MTU keeps
    /// it (virtio 1.2 §5.1.4.1: it must not change), so no report is sent.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.offer.mtu = mtu;
        if let Some(peer) = &mut self.peer {
            peer.session.set_mtu_max(mtu);
        }
    }

    /// True if the guest can continue in another session.
    fn may_part(&self, session: &Session) -> bool {
        let is_packed = session.features() & feature::RING_PACKED != 0;
        let keeps_position = !is_packed || self.control.has_inflight();
        keeps_position && !matches!(self.endpoint, Endpoint::Nowhere)
    }

    /// Opens the listening socket of a server that has none.
    pub(super) fn open_socket(&mut self) -> Result<(), VhostUserError> {
        let Endpoint::Server(listener @ None, path) = &mut self.endpoint else { return Ok(()) };
        let opened = Listener::bind(path)?;
        // Edge-triggered: a front end that cannot be accepted now must not be reported again and
        // again.
        self.reactor.add(&opened, TOKEN_ENDPOINT, Interest::READ, true)?;
        *listener = Some(opened);
        Ok(())
    }

    /// Closes and removes the listening socket of a server. Front ends that wait there see the end
    /// of their connection.
    fn close_socket(&mut self) {
        let Endpoint::Server(listener, _) = &mut self.endpoint else { return };
        if let Some(listener) = listener.take() {
            // Cannot fail: the socket was added and is still open.
            let _ = self.reactor.remove(&listener);
        }
    }
}
