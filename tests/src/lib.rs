//! Helpers of the test programs in this package.
