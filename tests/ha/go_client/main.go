// Runs canal-go's cluster client, with the loop of its examples, and connects again after an error that it does not handle itself.
// Prints each number that it gets, before it acks it. Arguments: ZooKeeper's hosts, destination, filter.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/withlin/canal-go/client"
	entries "github.com/withlin/canal-go/protocol/entry"
	"google.golang.org/protobuf/proto"
)

func main() {
	node, err := client.NewCanalClusterNode(os.Args[2], strings.Split(os.Args[1], ","), 5*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	connector, err := client.NewClusterCanalConnector(node, "", "", os.Args[2], 60000, 3600000)
	if err != nil {
		log.Fatal(err)
	}
	for {
		if err := follow(connector, os.Args[3]); err != nil {
			log.Println("again after", err)
			time.Sleep(500 * time.Millisecond)
		}
	}
}

// canal-go panics if a server answers with an error, as one does that does not read the destination yet.
func follow(connector *client.ClusterCanalConnector, filter string) (failed error) {
	defer func() {
		if reason := recover(); reason != nil {
			failed = fmt.Errorf("%v", reason)
		}
	}()
	if err := connector.Connect(); err != nil {
		return err
	}
	if err := connector.Subscribe(filter); err != nil {
		return err
	}
	for {
		message, err := connector.GetWithOutAck(100, nil, nil)
		if err != nil {
			return err
		}
		if message.Id == -1 {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		for at := range message.Entries {
			if err := show(&message.Entries[at]); err != nil {
				return err
			}
		}
		if err := connector.Ack(message.Id); err != nil {
			return err
		}
	}
}

func show(entry *entries.Entry) error {
	if entry.GetEntryType() != entries.EntryType_ROWDATA {
		return nil
	}
	change := new(entries.RowChange)
	if err := proto.Unmarshal(entry.GetStoreValue(), change); err != nil {
		return err
	}
	for _, row := range change.GetRowDatas() {
		fmt.Println("row", row.GetAfterColumns()[0].GetValue())
	}
	return nil
}
