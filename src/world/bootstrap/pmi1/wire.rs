//! The connection to a PMI-1 process manager: a line out, a line in, before a deadline.

use super::line::MAX_LINE;
use crate::error::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use std::os::fd::OwnedFd;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    /// What has come after the last line.
    rest: Vec<u8>,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            rest: Vec::new(),
        }
    }

    /// A second descriptor of the same connection, to watch it.
    pub(super) fn watch(&self) -> Result<OwnedFd> {
        self.socket
            .try_clone()
            .map_err(|error| lost(&error.to_string()))
    }

    /// Sends `line`, to which it adds the line end.
    pub(super) fn send(&self, line: &str, deadline: Instant) -> Result<()> {
        let text = format!("{line}\n");
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            self.ready(PollFlags::OUT, deadline)?;
            match send(
                &self.socket,
                bytes,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(lost(&error.to_string())),
            }
        }
        Ok(())
    }

    /// The next line, without its end.
    pub(super) fn receive(&mut self, deadline: Instant) -> Result<Vec<u8>> {
        let mut seen = 0;
        loop {
            if let Some(end) = self.rest[seen..].iter().position(|&byte| byte == b'\n') {
                let after = self.rest.split_off(seen + end + 1);
                let mut line = std::mem::replace(&mut self.rest, after);
                line.pop();
                return Ok(line);
            }
            seen = self.rest.len();
            if seen > MAX_LINE {
                return Err(lost("it sends a line without end"));
            }
            self.ready(PollFlags::IN, deadline)?;
            let mut buffer = [0; 4096];
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) | Err(Errno::CONNRESET) => {
                    return Err(lost("it has closed the connection"));
                }
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(lost(&error.to_string())),
            }
        }
    }

    fn ready(&self, flags: PollFlags, deadline: Instant) -> Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "the process manager has not answered in time",
                ));
            }
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.socket, flags)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(lost(&error.to_string())),
            }
        }
    }

    /// Ends the connection; who watches it notices.
    pub(super) fn close(&self) {
        // It may be closed already, which is as good.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

fn lost(why: &str) -> Error {
    Error::new(
        ErrorKind::Bootstrap,
        format!("the process manager is lost: {why}"),
    )
}
