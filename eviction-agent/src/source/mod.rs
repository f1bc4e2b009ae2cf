//! Where figures and events come from. Never sees `action`.
