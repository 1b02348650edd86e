//! Several buffers in one call, each of which comes back on its own.

use super::{Going, block, charge_of};
use crate::host::choosing::auto::Choice;
use crate::host::lending::lend::{Chain, Lend};
use crate::host::lending::queue::Op;
use crate::host::lending::sending::{Completions, SendError, Sending};
use crate::host::{TcpStream, would_block};
use std::future::poll_fn;
use std::task::{Context, Poll};

impl TcpStream {
    /// Sends the buffers of `chain`, one after the other, like [`TcpStream::send_zc`] of the whole
    /// chain; but each buffer comes back on its own, as soon as the peer has acknowledged its
    /// bytes. So the first ones can be used again while the last ones have not been sent. No bytes
    /// of other calls get between them.
    ///
    /// The budgets of lent bytes are charged for all buffers when the call is accepted, and each
    /// buffer gives its part back. A chain that does not fit waits; one that is larger than a
    /// budget is accepted when nothing else is lent.
    ///
    /// A `Vec` cannot come back in part; a large `bytes::BytesMut` can be split into buffers
    /// (`split_to`) and joined again (`unsplit`) without a copy.
    ///
    /// ```
    /// # use towpath::host::{Chain, TcpStream};
    /// # fn send(stream: &TcpStream) -> std::io::Result<()> {
    /// let parts = Chain((0..1024).map(|_| vec![0; 1 << 20]).collect());
    /// let mut sends = stream.send_zc_each(parts)?;
    /// while let Some(returned) = sends.wait_next() {
    ///     let _first: Vec<u8> = returned.buffer;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`TcpStream::send_zc`]. Nothing was lent; the chain is handed back.
    pub fn send_zc_each<B: Lend>(
        &self,
        chain: Chain<B>,
    ) -> Result<Completions<B>, SendError<Chain<B>>> {
        let mut going = Going::new(self, chain, self.term());
        let wait = self.inner.shape.write_wait();
        let sent = block(wait, |cx| self.poll_send_each(cx, &mut going));
        sent.unwrap_or_else(|| going.stop(would_block()).map(each_copied))
    }

    /// Sends the buffers of `chain` like [`TcpStream::send_zc_each`], as a future. Dropping the
    /// future before it is ready frees the buffers, which are not lent by then.
    pub async fn send_zc_each_async<B: Lend>(
        &self,
        chain: Chain<B>,
    ) -> Result<Completions<B>, SendError<Chain<B>>> {
        let mut going = Going::new(self, chain, self.term());
        poll_fn(|cx| self.poll_send_each(cx, &mut going)).await
    }

    fn poll_send_each<B: Lend>(
        &self,
        cx: &mut Context<'_>,
        going: &mut Going<Chain<B>>,
    ) -> Poll<Result<Completions<B>, SendError<Chain<B>>>> {
        let buffers = going.buffer.as_ref().map_or(&[][..], |chain| &chain.0);
        let len = buffers.iter().map(B::len).sum();
        if going.choice == Choice::Copy {
            return self.poll_copy(cx, going, len).map_ok(each_copied);
        }
        let charge = buffers.iter().map(|buffer| charge_of(buffer.len())).sum();
        match self.poll_charge(cx, charge) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(going.stop(error).map(each_copied)),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(self.lend_each(going, len))
    }

    /// Lends buffers of `len` bytes, for which the budgets were charged.
    fn lend_each<B: Lend>(
        &self,
        going: &mut Going<Chain<B>>,
        len: usize,
    ) -> Result<Completions<B>, SendError<Chain<B>>> {
        let (queue, core) = (&self.inner.queue, &self.inner.host.owner.core);
        let chain = going.buffer.take().expect("a future is done once");
        let due = self.due(going.term);
        let mut sends = Completions::new();
        let loans = chain.0.into_iter().map(|buffer| {
            let (lent, sending) = self.loan(buffer, due);
            sends.push(sending);
            Op::Lent(lent)
        });
        let ops: Vec<Op> = loans.collect();
        if let Some(Op::Lent(last)) = ops.last() {
            last.ticket.observe(self.inner.mode.watch(going.choice, len));
        }
        match core.send_all(queue, ops) {
            Ok(()) => Ok(sends),
            Err(ops) => {
                drop(ops);
                let buffers = std::iter::from_fn(|| sends.wait_next());
                let buffer = Chain(buffers.map(|returned| returned.buffer).collect());
                Err(SendError { error: self.failure(), buffer })
            }
        }
    }
}

/// Returns the handles of buffers that were copied.
fn each_copied<B: Lend>(sending: Sending<Chain<B>>) -> Completions<B> {
    let mut accepted = sending.accepted();
    let mut sends = Completions::new();
    for buffer in sending.returned().buffer.0 {
        let count = accepted.min(buffer.len());
        accepted -= count;
        sends.push(Sending::copied(buffer, count));
    }
    sends
}
