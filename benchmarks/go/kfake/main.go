// Starts kfake when a byte arrives on standard input, prints its address, and ends with the next byte.
package main

import (
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	signal := make([]byte, 1)
	os.Stdin.Read(signal)
	cluster := kfake.MustCluster(kfake.NumBrokers(1))
	fmt.Println(cluster.ListenAddrs()[0])
	os.Stdin.Read(signal)
	cluster.Close()
}
