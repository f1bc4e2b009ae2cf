//! The items of a list, one at a time, as the bytes of the list arrive: what is kept at once is the
//! largest item, not the list.

use serde::Deserialize;

/// More than this beside the items is no list.
const LONGEST_REST: usize = 64 << 10;

/// Cuts a list into its items.
#[derive(Debug)]
pub(super) struct Items {
    /// Everything but the content of `items`.
    rest: Vec<u8>,
    item: Vec<u8>,
    longest: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Where the last string of the list itself begins in `rest`: the key, when a colon follows.
    string: usize,
    key_is_items: bool,
    in_items: bool,
    too_long: bool,
}

/// An item, or that there was one that is too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    Whole(&'a [u8]),
    TooLong,
}

/// What a list says of itself.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    pub(super) metadata: ListMeta,
}

/// `metav1.ListMeta`.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    pub(super) r#continue: String,
}

impl Items {
    /// Items of at most so many bytes are told.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            rest: Vec::new(),
            item: Vec::new(),
            longest,
            depth: 0,
            in_string: false,
            escaped: false,
            string: 0,
            key_is_items: false,
            in_items: false,
            too_long: false,
        }
    }

    /// Takes what arrived, and tells each item that is whole by now.
    pub(super) fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Item<'_>)) -> Result<(), String> {
        for byte in bytes {
            if self.in_items {
                self.inside(*byte, &mut take);
            } else {
                self.outside(*byte)?;
            }
        }
        Ok(())
    }

    /// What the list says of itself, once all of it has arrived.
    pub(super) fn end(self) -> Result<Head, String> {
        serde_json::from_slice(&self.rest).map_err(|error| format!("not a whole list: {error}"))
    }

    fn outside(&mut self, byte: u8) -> Result<(), String> {
        if self.rest.len() >= LONGEST_REST {
            return Err("not a list: too much of it is no item".to_owned());
        }
        self.rest.push(byte);
        if self.in_string {
            self.string_byte(byte);
            return Ok(());
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.string = self.rest.len();
            }
            b':' if self.depth == 1 => {
                self.key_is_items =
                    self.rest.get(self.string..).is_some_and(|key| key.starts_with(b"items\""));
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.in_items = byte == b'[' && self.depth == 2 && std::mem::take(&mut self.key_is_items);
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' => self.key_is_items = false,
            _ => {}
        }
        Ok(())
    }

    fn inside(&mut self, byte: u8, take: &mut impl FnMut(Item<'_>)) {
        if self.in_string {
            self.string_byte(byte);
        } else {
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b',' if self.depth == 2 => return self.tell(take),
                b']' if self.depth == 2 => {
                    self.tell(take);
                    self.in_items = false;
                    self.depth = 1;
                    self.rest.push(byte);
                    return;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1).max(2),
                _ => {}
            }
        }
        if self.item.len() < self.longest {
            self.item.push(byte);
        } else {
            self.too_long = true;
            self.item = Vec::new();
        }
    }

    fn string_byte(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }

    fn tell(&mut self, take: &mut impl FnMut(Item<'_>)) {
        /// One great object must not keep its room for the whole list.
        const KEPT: usize = 64 << 10;
        let item = self.item.trim_ascii();
        if std::mem::take(&mut self.too_long) {
            take(Item::TooLong);
        } else if !item.is_empty() {
            take(Item::Whole(item));
        }
        self.item.clear();
        self.item.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{Item, Items};

    fn cut(text: &[u8], chunk: usize) -> (Vec<String>, Result<super::Head, String>) {
        let mut items = Items::new(100);
        let mut found = Vec::new();
        for bytes in text.chunks(chunk) {
            let pushed = items.push(bytes, |item| {
                found.push(match item {
                    Item::Whole(item) => String::from_utf8_lossy(item).into_owned(),
                    Item::TooLong => "-".to_owned(),
                });
            });
            if let Err(why) = pushed {
                return (found, Err(why));
            }
        }
        (found, items.end())
    }

    #[test]
    fn items_are_told_one_by_one() {
        let text = r#"{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"c","items":["no"]},
            "items" : [ {"a":[1,{"b":"],}\"\\"}]}, {} ,5 ] , "items2": [1]}"#;
        for chunk in [1, 2, 7, 1000] {
            let (items, head) = cut(text.as_bytes(), chunk);
            assert_eq!(items, [r#"{"a":[1,{"b":"],}\"\\"}]}"#, "{}", "5"]);
            let head = head.unwrap().metadata;
            assert_eq!((head.resource_version.as_str(), head.r#continue.as_str()), ("7", "c"));
        }
    }

    #[test]
    fn a_list_without_items_is_one() {
        for text in [
            r#"{"metadata":{"resourceVersion":"7"}}"#,
            r#"{"items":[],"metadata":{"resourceVersion":"7"}}"#,
            r#"{"items":null,"metadata":{"resourceVersion":"7"}}"#,
        ] {
            let (items, head) = cut(text.as_bytes(), 3);
            assert!(items.is_empty());
            assert_eq!(head.unwrap().metadata.resource_version, "7", "{text}");
        }
    }

    #[test]
    fn a_great_item_is_passed_over() {
        let text = format!(r#"{{"items":["{}", 1]}}"#, "x".repeat(1000));
        assert_eq!(cut(text.as_bytes(), 10).0, ["-", "1"]);
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let text = r#"{"items":[{"a":1},{"b":2}]}"#;
        for end in 0..text.len() {
            assert!(cut(&text.as_bytes()[..end], 5).1.is_err(), "{end}");
        }
        assert!(cut(&vec![b'x'; 70_000], 999).1.is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i32>().prop_map(Value::from),
            ".{0,5}".prop_map(Value::from),
            Just(Value::Null)
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".{0,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_list_is_cut_as_it_was_joined(list in prop::collection::vec(any_json(), 0..5), chunk in 1..50_usize) {
            let mut items = Items::new(1 << 20);
            let mut found = Vec::new();
            let text = json!({"apiVersion": "v1", "items": list, "metadata": {"resourceVersion": "3"}}).to_string();
            for bytes in text.as_bytes().chunks(chunk) {
                items.push(bytes, |item| if let Item::Whole(item) = item {
                    found.push(serde_json::from_slice::<Value>(item).unwrap());
                }).unwrap();
            }
            prop_assert_eq!(found, list);
            prop_assert_eq!(items.end().unwrap().metadata.resource_version, "3");
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), chunk in 1..20_usize) {
            let _ = cut(&bytes, chunk);
        }
    }
}
