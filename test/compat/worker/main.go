// Command worker is a process of the tests in compat.
package main

import (
	"log"
	"os"

	"github.com/caddy-redlock/caddy-redlock/test/compat"
)

func main() {
	if err := compat.Work(os.Args[1], os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
