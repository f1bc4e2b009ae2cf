package main

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
)

// maker is a source of random choices.
type maker struct {
	*rand.Rand
}

func (m maker) chance(p float64) bool { return m.Float64() < p }

func one[T any](m maker, from ...T) T { return from[m.IntN(len(from))] }

// weighted picks an index in proportion to its weight.
func (m maker) weighted(weights ...float64) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := m.Float64() * sum
	for i, w := range weights {
		if at -= w; at < 0 {
			return i
		}
	}
	return len(weights) - 1
}

// quantity writes v in one of the ways that mean exactly v; plain ones are preferred.
func (m maker) quantity(v int64, odd float64) string {
	if !m.chance(odd) {
		return m.plain(v)
	}
	sign := ""
	if v < 0 {
		sign, v = "-", -v
	} else if m.chance(0.15) {
		sign = "+"
	}
	zeros := ""
	if m.chance(0.12) {
		zeros = strings.Repeat("0", 1+m.IntN(4))
	}
	text := ""
	switch m.IntN(12) {
	case 0:
		text = fmt.Sprintf("%d.", v)
	case 1:
		text = fmt.Sprintf("%d.%s", v, strings.Repeat("0", 1+m.IntN(4)))
	case 2:
		text = fmt.Sprintf("%d%sm", v, "000")
	case 3:
		text = fmt.Sprintf("%d000000u", v)
		if v > 1e9 {
			text = fmt.Sprintf("%de%s0", v, one(m, "", "+", "-"))
		}
	case 4: // a point moved to the left
		n := 1 + m.IntN(9)
		text = point(v, n) + fmt.Sprintf("%s%s%d", one(m, "e", "E"), one(m, "", "+", "+0"), n)
	case 5: // a point moved to the left, with a suffix
		i := m.IntN(4)
		text = point(v, 3*(i+1)) + []string{"k", "M", "G", "T"}[i]
	case 6:
		n := 1 + m.IntN(4)
		text = fmt.Sprintf("%d%se-%d", v, strings.Repeat("0", n), n)
	case 7: // binary, with a fraction where it ends soon
		i := m.IntN(3)
		unit := int64(1) << (10 * (i + 1))
		ratio := new(big.Rat).SetFrac64(v, unit)
		digits, exact := ratio.FloatPrec()
		if exact && digits < 24 {
			text = ratio.FloatString(digits) + []string{"Ki", "Mi", "Gi"}[i]
		} else {
			text = m.plain(v)
		}
	case 8:
		if v%1000 == 0 && v != 0 {
			text = fmt.Sprintf("%dk", v/1000)
		} else {
			text = fmt.Sprintf("%d.000", v)
		}
	case 9:
		text = fmt.Sprintf("%d%s", v, one(m, "e0", "E0", "e-0", "E+00", "e00"))
	default:
		text = m.plain(v)
	}
	if strings.HasPrefix(text, "0.") && m.chance(0.5) {
		text = text[1:]
	}
	return sign + zeros + text
}

// point writes v / 10^n.
func point(v int64, n int) string {
	digits := strconv.FormatInt(v, 10)
	if len(digits) <= n {
		digits = strings.Repeat("0", n+1-len(digits)) + digits
	}
	return digits[:len(digits)-n] + "." + digits[len(digits)-n:]
}

// plain writes v as people do.
func (m maker) plain(v int64) string {
	if v != 0 && m.chance(0.75) {
		for i, suffix := range []string{"Ti", "Gi", "Mi", "Ki"} {
			if unit := int64(1) << (10 * (4 - i)); v%unit == 0 {
				return fmt.Sprintf("%d%s", v/unit, suffix)
			}
		}
	}
	if v != 0 && m.chance(0.6) {
		unit := int64(1e12)
		for _, suffix := range []string{"T", "G", "M", "k"} {
			if v%unit == 0 {
				if m.chance(0.2) {
					return fmt.Sprintf("%d%s%d", v/unit, one(m, "e", "E"), len(strconv.FormatInt(unit, 10))-1)
				}
				return fmt.Sprintf("%d%s", v/unit, suffix)
			}
			unit /= 1000
		}
	}
	return strconv.FormatInt(v, 10)
}

// Texts that parse as a quantity but seldom as one thinks.
var oddQuantities = []string{
	"0", "0.0", "-0", "+0", "0Ki", "0e3", "00", ".", "+", "-", "Ki", "m", "e5", ".Mi", "+.", "0.0000000001Ki",
	"1n", "1u", "1m", "999n", "0.1n", "1e-9", "1e-10", "1e-12", "15e-10", "0.5", ".5", "0.5Ki", "0.0001Ki", "1.5Ki", "0.3Mi",
	"1.7Gi", "1234567.891Ki", "1.G", "1.500M", "1.5G", "5E3", "5e3", "5E", "1000k", "1000E", "1E", "0.001E", "00012Mi", "+5Mi", "8Mi", "7Mi", "1024Ki", "1000Ki",
	"100Ti", "99Ti", "1Pi", "3Pi", "1Ei", "7Ei", "8Ei", "7.9999Ei", "16Ei", "100Ei", "-8Ei", "-9Ei", "-1", "-1Gi", "-0.5", "-1500m", "-1.0000000001",
	"9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551616", "99999999999999999999", "123456789012345678", "1234567890123456789",
	"100000000000000000000", "1e18", "1e19", "1e20", "1e21", "1e22", "1e30", "12e25", "1e33", "1000000000000e12", "1e4294967297", "1e-4294967296", "2e4294967296",
	"1000000000000000000000", "1500000000000000000000", "1000P", "1000000E", "123456E", "0.00000000001E", "123456789.123456789", "123456789.1234567891", "0.123456789012345678901234567890",
	"1.000000000", "1.0000000001", "1.000000001", "999999999999999999", "1000000000000000001m", "12345678901234567890123m", "1e+2", "1E-3", "1E+03", "100e-2", "1.10", "1.100", "0010.0100k",
}

// Texts that are no quantity.
var badQuantities = []string{
	"", " ", "1 Gi", " 1Gi", "1Gi ", "1gi", "1GI", "1KB", "1K", "1ki", "1Zi", "1Z", "5e", "5E+", "5e-", "1Gi5", "abc", "1..5", "1.2.3", "--1", "+-5", "-+5", "5-3", "5+", "1e1.5", "1e3k", "1ek3", "1kk", "1mKi", "0x10",
	"1_000", "NaN", "Inf", "1e99999999999999999999", ".e-10", "e-10", "-.e-20", "1,5", "<1Gi", "<5", "1Gi\n", "１", "1µ", "100Mi%d", "¼", "1Gi;", "%1", "1e", "Gi1", "i", "5i", "5Eii", "\t5",
}

// Percentages that are accepted for thresholds.
var oddPercents = []string{
	"7%%", "+7%", ".5%", "5.%", "1e1%", "1E1%", "1e+1%", "100e-1%", "0x1p3%", "0X1P3%", "0x.8p4%", "0x1.8p2%", "0x8p0%", "1_0%", "0_5%", "1_2.5%", "0x_1p3%", "NaN%", "nan%", "NAN%", "0.0%", "-0%", "+0%", "00%", "-0.0%", "100.0%", "100%%", "+100%", "0100%", "0%%",
	"1e-50%", "0.00001%", "33.333333333333%", "99.99999%", "99.99999999%", "00007%", "14.999999%", "7.0000001%", "16777217e-7%", "1e-45%", "100.0000001%", "0x64p0%", "9.99999999999999999999999999%", "1e-3%", "12.5%%%",
}

// Percentages that are not.
var badPercents = []string{
	"%", "%%", "5 %", " 5%", "-5%", "-0.1%", "-1e-30%", "101%", "100.1%", "100.00001%", "1e400%", "-1e400%", "1e39%", "Inf%", "+Inf%", "-Inf%", "inf%", "infinity%", "-infinity%", "0x%", "0x1%", "0x10%", "1__0%", "_1%", "1_%", "1_.5%", "0b1p1%", ".%", "1e%", "e1%", "0x1p%", "1.2.3%",
	"5%5%", "%5%", "٣%", "5\u00a0%", "five%", "\"5\"%", "5\\%", "+-5%", "++5%", "5,5%", "5e1.5%", "5k%", "1Gi%", "10%d%", "\x7f%", "5\t%", "😀%", "\u2028%", "3.4028236e38%", "NaN5%", "+NaN%", "-NaN%", "infin%", "0o7%", "1e1_0%", "nan(1)%", "250%", "1000%",
}

// Percentages only a minimum reclaim may have.
var reclaimPercents = []string{"100%", "101%", "250%", "1000%", "1e6%", "1e30%", "3e38%", "100.0%", "NaN%", "Inf%", "+Inf%", "1e2%", "0x1p10%", "99999999999%"}

// Percentages a minimum reclaim may not have.
var badReclaimPercents = []string{"0%", "-0%", "0.0%", "-5%", "1e-50%", "-Inf%", "0%%", "%", "5 %", "1e39%", "x%"}

// Durations a grace period may have.
var goodGraces = []string{
	"0", "0s", "-0s", "+0s", "-0", "0h0m0s", "1s", "10s", "30s", "60s", "1m", "1m0s", "90s", "1m30s", "2m", "5m", "1h", "1.5m", ".5s", "1.s", "0.5h", "100ms", "1000ms", "1us", "1µs", "1μs", "1ns", "10000000000ns", "+5s", "1h1h", "1s1m", "2562047h47m16.854775807s", "9223372036854775807ns",
	"0.000000001s", "0.0000000001s", "1.0000000009s", "10s0ms", "00010s", "0.1s0.9s", "20.s", "15s",
}

var badGraces = []string{
	"", "90", "1d", "s", "-30s", "-1ns", "1 s", " 1s", "1s ", "1e3s", "9223372036854775808ns", "2562047h47m16.854775808s", "-2562047h47m16.854775808s", "9999999999999999999s", ".s", ".", "-", "+", "--1s", "1m-1s", "5S", "5m5", "1h 5m", "∞s", "5µ", "5\u00b5d", "\"5s\"", "5\\s", "1y", "5sec", "5min", "0x5s", "1_0s", "NaNs", "3000000h", "-.s", "..5s", "1.2.3s", "5s\n", "\x01s", "é", "1w", "0d", "00", "1", "-1s1s",
}

// duration writes a number of nanoseconds in one of Go's ways.
func (m maker) duration(ns int64) string {
	if ns == 0 {
		return one(m, "0", "0s", "0m", "-0s", "0h0m0s")
	}
	sign := ""
	if ns < 0 {
		sign, ns = "-", -ns
	}
	second := int64(1e9)
	if ns%second == 0 {
		s := ns / second
		forms := []string{fmt.Sprintf("%ds", s), fmt.Sprintf("%ds", s), fmt.Sprintf("%dms", s*1000), fmt.Sprintf("%d.0s", s)}
		if s >= 60 {
			forms = append(forms, fmt.Sprintf("%dm%ds", s/60, s%60), fmt.Sprintf("%dm%ds", s/60, s%60))
			if s%60 == 0 {
				forms = append(forms, fmt.Sprintf("%dm", s/60), fmt.Sprintf("%dm", s/60))
			}
			if s%6 == 0 {
				forms = append(forms, fmt.Sprintf("%sm", strings.TrimSuffix(point(s/6, 1), ".0")))
			}
			if s%3600 == 0 {
				forms = append(forms, fmt.Sprintf("%dh", s/3600), fmt.Sprintf("%dh0m0s", s/3600))
			}
		}
		return sign + one(m, forms...)
	}
	return sign + one(m, fmt.Sprintf("%dns", ns), point(ns, 9)+"s", point(ns, 6)+"ms", point(ns, 3)+"us", point(ns, 3)+"µs")
}
