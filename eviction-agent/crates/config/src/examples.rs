//! How a value is written, as a hint in the error of one that is written in another way.

/// For the error text of a parser.
pub(super) fn example(cause: &str) -> Option<String> {
    let example = if cause.starts_with("time: ") {
        "a duration is written as 30s or 1m30s"
    } else if cause.starts_with("strconv.ParseFloat") {
        "a percentage is written as 5% or 7.5%"
    } else if cause.starts_with("quantities must") || cause.starts_with("unable to parse") {
        "a quantity is written as 500Mi or 1.5Gi"
    } else if cause == "invalid socket address syntax" {
        "an address with a port is written as 127.0.0.1:9095"
    } else {
        return None;
    };
    Some(example.to_owned())
}
