package redis

import "strings"

// Slots is how many parts a Redis Cluster's keys are in, each on one node.
const Slots = 1 << 14

// HashSlot returns the slot of a Redis key (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
func HashSlot(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC16/XMODEM
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return int(crc) % Slots
}

var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
