//! A report as one HTML page that makes no outside request.

use std::fs::File;
use std::io::{self, Read as _};

use super::Report;

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const UPLOT: &str = include_str!("uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("uplot/uPlot.min.css");

impl Report {
    /// Returns the report as an HTML page. Only scripts and styles with its nonce, which cannot be guessed, take
    /// effect.
    ///
    /// # Errors
    /// If the kernel has no random numbers.
    pub(crate) fn html(&self) -> io::Result<String> {
        // Without `<`, no text can close the element or open another one.
        let data = self.json().replace('<', "\\u003c");
        let page = PAGE
            .replace("{{NONCE}}", &random_hex()?)
            .replace("{{CONNECT}}", if self.live { "'self'" } else { "'none'" })
            .replace("{{UPLOT_CSS}}", UPLOT_CSS)
            .replace("{{UPLOT_JS}}", UPLOT)
            .replace("{{SCRIPT}}", SCRIPT);
        // The data is inserted last, so that its content is not replaced.
        Ok(page.replacen("{{DATA}}", &data, 1))
    }
}

/// Returns 128 random bits in hexadecimal digits.
///
/// # Errors
/// If the kernel has no random numbers.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
