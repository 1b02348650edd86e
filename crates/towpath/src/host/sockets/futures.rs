//! `AsyncRead` and `AsyncWrite` of `futures-io` for code that takes any stream.
//!
//! They copy, as `read` and `write` do. They use wakers only and depend on no runtime. Tokio's
//! traits are implemented in `towpath::tokio`.

use crate::host::TcpStream;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};

macro_rules! futures_io {
    ($($kind:ty),+) => {$(
        impl futures_io::AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                into: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_read(&self, cx, into)
            }
        }

        impl futures_io::AsyncWrite for $kind {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_write(&self, cx, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                TcpStream::poll_write_vectored(&self, cx, slices)
            }

            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(self.shutdown(Shutdown::Write))
            }
        }
    )+};
}

futures_io!(TcpStream, &TcpStream);
