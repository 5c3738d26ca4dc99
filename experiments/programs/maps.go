// Maps and slices of MIB mebibytes, with rubbish beside them: maps MIB
package main

import (
	"fmt"
	"os"
	"strconv"
)

type one struct {
	name string
	x    []int64
}

func main() {
	mib, _ := strconv.Atoi(os.Args[1])
	count := mib * (1 << 20) / 220
	all := map[int]*one{}
	for i := 0; i < count; i++ {
		all[i] = &one{fmt.Sprintf("name %d", i), []int64{int64(i), int64(i) * 3, int64(i % 97)}}
	}
	sum, at := int64(0), int64(1)
	for i := 0; i < 20000; i++ {
		at = at * 48271 % 2147483647
		p := all[int(at)%count]
		p.x[0] += p.x[2]
		sum = (sum*31 + p.x[0] + int64(len(p.name))) % 1000000007
	}
	for i := 0; i < count; i++ {
		sum = (sum*31 + all[i].x[0] + all[i].x[1]) % 1000000007
	}
	fmt.Println(count, sum)
}
